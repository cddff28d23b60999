"""What does a training loop of your own wait for? A few lines around it, and the verdict after it.

    with fw.profile() as p:
        for batch in p.steps(loader):
            train(batch)
    print(p.verdict())

Each step is a line of a record (docs/record.md), so `feedwater report` reads it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from feedwater import _core

Item = TypeVar("Item")


def profile(record: str | os.PathLike[str] | None = None, *, name: str = "training loop") -> Profile:
    """Records the steps of a loop. `record` keeps the file."""
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
        self._file: IO[str] | None = None
        self._began = 0
        self._number = 0
        self._own_nanos = 0
        self._parts: dict[str, int] = {}

    def __enter__(self) -> Profile:
        self._began = time.perf_counter_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes the end of the record."""
        if self._file is not None:
            wall = time.perf_counter_ns() - self._began
            self._write({"end": {"wall_nanos": wall, "overhead_nanos": self._own_nanos}})
            self._file.close()
            self._file = None

    def steps(self, loader: Iterable[Item], *, epoch: int = 0) -> Iterator[Item]:
        """The loader's batches; what is between asking for one and asking for the next is a step."""
        iterator = iter(loader)
        if self._file is None:
            self._open(loader)
        while True:
            asked = time.perf_counter_ns()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            got = time.perf_counter_ns()
            self._parts = {}
            yield batch
            done = time.perf_counter_ns()
            self._step(asked, got, done, iterator, batch, epoch)
            self._own_nanos += time.perf_counter_ns() - done

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time of a step that is not the model's: `copy`, `sync`, `optimizer`."""
        if name not in ("copy", "sync", "optimizer"):
            raise ValueError(f"`part` is `{name}`\nhint: one of copy, sync, optimizer")
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self._parts[name] = self._parts.get(name, 0) + time.perf_counter_ns() - began

    def _open(self, loader: object) -> None:
        settings: dict[str, Any] = {"loader": type(loader).__module__.split(".")[0]}
        if hasattr(loader, "settings"):
            settings = loader.settings()
        elif hasattr(loader, "num_workers"):
            workers = int(loader.num_workers)
            factor = getattr(loader, "prefetch_factor", None) or 2
            settings.update(threads=workers, batch_at_a_time=True, prefetch=workers * factor)
            if isinstance(getattr(loader, "batch_size", None), int):
                settings["batch_size"] = loader.batch_size  # type: ignore[attr-defined]
        run = {
            "name": self.name,
            "writer": f"feedwater {_core.__version__} (Python)",
            "started_unix_seconds": int(time.time()),
            "clock": "host",
            "host": json.loads(_core.host()),
            "settings": settings,
        }
        self._file = self.record.open("w", encoding="utf-8")
        self._write({"record": "feedwater", "version": 1, "run": run})

    def _step(self, asked: int, got: int, done: int, iterator: object, batch: object, epoch: int) -> None:
        other = sum(self._parts.values())
        step: dict[str, Any] = {
            "step": self._number,
            "epoch": epoch,
            "wall_nanos": max(done - asked, 1),
            "wait_nanos": got - asked,
            "compute_nanos": max(done - got - other, 0),
            **{f"{name}_nanos": nanos for name, nanos in self._parts.items()},
        }
        if rows := _rows(batch):
            step["rows"] = rows
        made = getattr(iterator, "last_input", None)
        if made:
            step["input"] = made
        self._write(step)
        self._number += 1

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")

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
        if self._file is not None:
            self._file.flush()
        if not self.record.exists():
            raise ValueError("nothing was recorded\nhint: `for batch in p.steps(loader):`")

    def __repr__(self) -> str:
        try:
            return self.verdict()
        except ValueError as error:
            return f"<profile of {self._number} steps: {error}>"

    def _repr_html_(self) -> str:
        import html

        try:
            page = html.escape(self.html(), quote=True)
        except ValueError as error:
            return f"<pre>{html.escape(str(error))}</pre>"
        # A frame of its own: the page's styles must not reach the notebook's.
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'


def _rows(batch: object) -> int | None:
    """How many samples a batch has, as far as that can be seen."""
    if isinstance(batch, dict):
        batch = next(iter(batch.values()), None)
    elif isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) > 0 else None
