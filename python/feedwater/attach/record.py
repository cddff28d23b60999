"""How does what was seen become a record?

A record is JSON lines (docs/record.md). Lines are written as the run goes, so that a run that is killed leaves one too.

Times are marks: the host's clock and, where CUDA is in use, an event on the current stream. Events of one stream follow each
other without gaps, so that a wait between two of them is time in which the device really stood still. They are read later,
when `query()` says that they have passed; nothing here ever waits for the device.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

Mark = tuple[int, Any]
"""The host's nanoseconds, and an event or nothing."""

Span = tuple[str, Mark, Mark]
"""What was done (`wait`, `copy`, `compute`, `optimizer`), from when to when."""

# What observing takes is this thread's own time: where workers keep the cores busy, the rest is theirs. Windows counts that
# in sixtieths of a second.
spent_nanos = time.thread_time_ns if time.get_clock_info("thread_time").resolution < 1e-6 else time.perf_counter_ns

# Where spans lie in each other, the first of these has the time: a closure's forward lies within the optimizer's step.
_KINDS = ("wait", "copy", "sync", "compute", "optimizer")


class Clock:
    """Gives marks, and says what lies between them."""

    def __init__(self) -> None:
        self._pool: list[Any] = []
        self._event_type: Callable[..., Any] | None = None
        self._capturing: Callable[[], bool] = lambda: False

    @property
    def name(self) -> str:
        """What the record calls this clock."""
        return "host" if self._event_type is None else "host+events"

    def use_events(self, event_type: Callable[..., Any], capturing: Callable[[], bool]) -> None:
        """From now on, marks have events. None is recorded while a graph is captured: it would become part of it."""
        self._event_type, self._capturing = event_type, capturing

    def mark(self) -> Mark:
        """Now."""
        now = time.perf_counter_ns()
        if self._event_type is None or self._capturing():
            return now, None
        event = self._pool.pop() if self._pool else self._event_type(enable_timing=True)
        event.record()
        return now, event

    @staticmethod
    def passed(marks: Iterable[Mark]) -> bool:
        """Whether all events of some marks have passed."""
        return all(event is None or event.query() for _, event in marks)

    def offsets(self, origin: Mark, marks: Iterable[Mark], passed: bool) -> list[int]:
        """Nanoseconds from `origin` to each mark: by events where all are there and have passed, else the host's."""
        marks = list(marks)
        if passed and origin[1] is not None and all(event is not None for _, event in marks):
            return [round(origin[1].elapsed_time(event) * 1e6) for _, event in marks]
        return [host - origin[0] for host, _ in marks]

    def release(self, marks: Iterable[Mark]) -> None:
        """Takes events back that nobody asks again."""
        self._pool.extend(event for _, event in marks if event is not None)


def together(before: dict[str, Any] | None, now: dict[str, Any] | None) -> dict[str, Any] | None:
    """How the batches of one step were made, as if they were one: `input` of a step, as the engine's `Input::merge` has it."""
    if before is None or now is None:
        return before or now
    made = {**now, **{name: before[name] for name in ("ready",) if name in before}}
    for name in ("cpu_nanos", "queued_nanos", "bytes", "padding_bytes", "padding_to_longest_bytes", "read_bytes"):
        if name in before or name in now:
            made[name] = before.get(name, 0) + now.get(name, 0)
    works = before.get("work_nanos", {}), now.get("work_nanos", {})
    made["work_nanos"] = {stage: sum(work.get(stage, 0) for work in works) for stage in {**works[0], **works[1]}}
    waited = [input["waited_for"] for input in (before, now) if "waited_for" in input]
    if waited:
        made["waited_for"] = max(waited, key=lambda blame: blame["nanos"])
    slowest = [*before.get("slowest", []), *now.get("slowest", [])]
    made["slowest"] = sorted(slowest, key=lambda blame: -blame["nanos"])[:4]
    tuned = [*before.get("tuned", []), *now.get("tuned", [])]
    return {**made, "tuned": tuned} if tuned else made


def share_out(wall: int, spans: list[tuple[str, int, int]]) -> dict[str, int]:
    """The nanoseconds of each kind. No moment counts twice, and none outside the step."""
    shares = dict.fromkeys(_KINDS, 0)
    taken: list[tuple[int, int]] = []
    for kind in _KINDS:
        for name, begin, end in sorted(spans):
            if name != kind:
                continue
            free = [(max(begin, 0), min(end, wall))]
            for low, high in taken:
                free = [
                    part
                    for start, stop in free
                    for part in ((start, min(stop, low)), (max(start, high), stop))
                    if part[0] < part[1]
                ]
            free = [(start, stop) for start, stop in free if start < stop]
            taken.extend(free)
            shares[kind] += sum(stop - start for start, stop in free)
    return shares


class Writer:
    """The file. What cannot be written is given up: the script goes on."""

    def __init__(self, path: str, failed: Callable[[], None]) -> None:
        self._path = path
        self._failed = failed
        self._lines: list[str] = []
        self._file: Any = None
        self._flushed_nanos = 0
        self.dead = False

    def line(self, value: dict[str, Any]) -> None:
        """Adds a line; about once a second, lines go into the file."""
        if self.dead:
            return
        self._lines.append(json.dumps(value, separators=(",", ":")))
        if time.perf_counter_ns() - self._flushed_nanos > 1_000_000_000:
            self.flush()

    def flush(self) -> None:
        """Writes what is there."""
        self._flushed_nanos = time.perf_counter_ns()
        if self.dead or not self._lines:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
        except Exception:  # noqa: BLE001
            self.dead = True
            self._failed()
        self._lines.clear()

    def close(self) -> None:
        """Writes what is there, and that is all."""
        self.flush()
        if self._file is not None:
            self._file.close()
        self.dead = True


def host() -> dict[str, Any]:
    """The machine, as the record has it."""
    about: dict[str, Any] = {"os": platform.system().lower(), "cpu": platform.machine()}
    cores = os.cpu_count() or 1
    usable = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(cores)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            about["cpu"] = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="utf-8") as file:
            quota, period = file.read().split()
        if quota != "max":
            about["quota_cores"] = int(quota) / int(period)
            usable = min(usable, about["quota_cores"])
    except (OSError, ValueError):
        pass
    if sys.platform != "win32":
        try:
            about["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (OSError, ValueError):
            pass
    return {**about, "cores": float(cores), "usable_cores": usable}
