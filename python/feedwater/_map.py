"""How does a sample reach a function of the user's, and come back? As a dictionary of arrays, text and numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any


class PythonMap:
    """A user's function, with fields made into arrays and back. A class, so that it can be pickled."""

    def __init__(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.function = function

    def __call__(self, key: str, fields: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        import numpy

        sample: dict[str, Any] = {"key": key}
        for name, (kind, *value) in fields.items():
            if kind == "audio":
                sample[name] = numpy.frombuffer(value[0], numpy.float32)
            elif kind == "tensor":
                sample[name] = numpy.frombuffer(value[0], numpy.float32).reshape(value[1])
            elif kind != "kept":
                sample[name] = value[0]
        made = self.function(sample)
        if not isinstance(made, Mapping):
            raise TypeError(f"it gave back {type(made).__name__}, not a dictionary of fields")
        result = {name: field for name, field in fields.items() if field[0] == "kept"}
        for name, value in made.items():
            if name != "key":
                result[name] = _field(name, value, fields.get(name))
        return result


def _field(name: str, value: Any, before: tuple[Any, ...] | None) -> tuple[Any, ...]:
    import numpy

    if isinstance(value, str):
        return ("text", value)
    if isinstance(value, (bytes, bytearray)):
        return ("bytes", bytes(value))
    if isinstance(value, os.PathLike):
        return ("kept",)
    if isinstance(value, (bool, int, float, numpy.generic)):
        return ("number", float(value))
    if isinstance(value, list) and all(isinstance(number, int) for number in value):
        return ("tokens", value)
    array = numpy.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"field `{name}` is {type(value).__name__}, which cannot travel in a batch")
    if array.dtype.kind in "iu" and array.ndim == 1:
        return ("tokens", array.tolist())
    numbers = numpy.ascontiguousarray(array, numpy.float32).tobytes()
    if before is not None and before[0] == "audio" and array.ndim == 1:
        return ("audio", numbers, before[2])
    return ("tensor", numbers, list(array.shape))
