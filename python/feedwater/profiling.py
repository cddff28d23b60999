"""What does a training loop of your own wait for? Two lines around it, and the verdict after it.

    with fw.profile() as p:
        for batch in loader:
            train(batch)
    print(p.verdict())

The loop is observed as `feedwater profile -- python train.py` observes a script (`attach/`): loaders, the model, the
optimizer. Each step is a line of a record (docs/record.md), so `feedwater report` reads it too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from feedwater import _core

Item = TypeVar("Item")
_ATTACH = "_feedwater_attach"


def _observer(module: str) -> Any:
    """A module of the observer, under the name that it has in scripts that are observed from outside: there is one."""
    if _ATTACH not in sys.modules:
        package = types.ModuleType(_ATTACH)
        package.__path__ = [str(Path(__file__).with_name("attach"))]
        sys.modules[_ATTACH] = package
    return importlib.import_module(f"{_ATTACH}.{module}")


def observed(loader: Any, iterator: Iterator[Item]) -> Iterator[Item]:
    """An iterator of one of our loaders, observed where anything is."""
    if _ATTACH not in sys.modules:
        return iterator
    return cast("Iterator[Item]", _observer("hooks").observe_iterator(loader, loader.settings(), iterator))


def profile(record: str | os.PathLike[str] | None = None, *, name: str = "training loop") -> Profile:
    """Observes the training loop within a `with`. `record` keeps the file."""
    return Profile(record, name=name)


class Profile:
    """A record that is being written, and what it says."""

    def __init__(self, record: str | os.PathLike[str] | None = None, *, name: str = "training loop") -> None:
        self._folder = None
        if record is None:
            self._folder = tempfile.TemporaryDirectory(prefix="feedwater-", ignore_cleanup_errors=True)
            record = Path(self._folder.name) / "record.jsonl"
        self.record = Path(record)
        self.name = name
        self._observation: Any = None
        self._run: Any = None

    def __enter__(self) -> Profile:
        self._run = _observer("hooks").observing()
        if self._run is not None:
            # In a script that is observed from outside: one record is enough.
            self.record = Path(self._run.path)
            return self
        # A place that cannot be written is an error now, not when everything is over.
        self.record.write_text("", encoding="utf-8")
        self._observation = _observer("observer").Observation(str(self.record.resolve()), self.name)
        self._run = self._observation.run
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it. What was observed stays."""
        if self._observation is not None:
            observation, self._observation = self._observation, None
            failed = observation.end()
            if failed:
                last = failed.strip().splitlines()[-1]
                warnings.warn(f"not everything could be observed: {last}", RuntimeWarning, stacklevel=3)

    def steps(self, loader: Iterable[Item]) -> Iterator[Item]:
        """The batches of any loader; what is between asking for one and asking for the next is a step.

        Loaders of torch and of feedwater are observed without it.
        """
        settings = {"loader": type(loader).__module__.split(".")[0]}
        iterator = iter(loader)
        return cast("Iterator[Item]", _observer("hooks").observe_iterator(loader, settings, iterator))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time of a step that is not the model's, where that cannot be seen: `copy`, `sync`, `optimizer`."""
        if name not in ("copy", "sync", "optimizer"):
            raise ValueError(f"`part` is `{name}`\nhint: one of copy, sync, optimizer")
        run = _observer("hooks").observing()
        begin = run.clock.mark() if run is not None else None
        try:
            yield
        finally:
            if run is not None:
                run.span(name, begin)

    # What it says.

    def verdict(self) -> str:
        """Where the time goes and what will help, for a terminal."""
        self._flush()
        return _core.verdict(self.record)

    def diagnosis(self) -> dict[str, Any]:
        """The same as data."""
        self._flush()
        return cast("dict[str, Any]", json.loads(_core.diagnose(self.record)))

    def html(self) -> str:
        """The same as a page."""
        self._flush()
        return _core.html(self.record)

    def _flush(self) -> None:
        if self._run is not None:
            self._run.flush()
        if not self.record.exists() or self.record.stat().st_size == 0:
            raise ValueError(
                "nothing was recorded\nhint: the loop belongs within `with fw.profile() as p:`; where its loader is of neither "
                "torch nor feedwater: `for batch in p.steps(loader):`"
            )

    def __repr__(self) -> str:
        try:
            return self.verdict()
        except ValueError as error:
            return f"<profile: {error}>"

    def _repr_html_(self) -> str:
        import html

        try:
            page = html.escape(self.html(), quote=True)
        except ValueError as error:
            return f"<pre>{html.escape(str(error))}</pre>"
        # A frame of its own: the page's styles must not reach the notebook's.
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'
