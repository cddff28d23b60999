"""Who makes the batches of a `DataLoader`? Threads, which all work on the samples of the batch that is due next.

They know their crew, never the iterator: an iterator that nobody holds is collected, and they end.
"""

from __future__ import annotations

import copy
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pin

_JOIN_SECONDS = 5.0  # what torch gives its workers
_PROBE_NANOS = 20_000_000
_LATE_NANOS = 1_000_000
_PROBES = 20  # below, a share would be a guess
_MOST_PARTS = 1000  # of a batch that are looked at for its size
_OPENMP = "ATen parallel backend: OpenMP" in torch.__config__.parallel_info()
_clock = time.perf_counter_ns


class Stream:
    """An ``IterableDataset`` during one epoch: opened by the thread that reads it, at the first sample."""

    def __init__(self, dataset: Any, skip: int, state: Any) -> None:
        self.dataset, self.skip, self.state = dataset, skip, state
        self.stateful = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        self.iterator: Iterator[Any] | None = None
        self.count = skip
        self.ended = False

    def samples(self) -> Iterator[Any]:
        """The iterator over the samples, where the epoch stands."""
        if self.iterator is None:
            if self.state is not None:
                self.dataset.load_state_dict(self.state)
            self.iterator = iter(self.dataset)
            for done in range(0 if self.state is not None else self.skip):
                try:
                    next(self.iterator)
                except StopIteration:
                    raise RuntimeError(f"the dataset ended after {done} of {self.skip} samples to skip") from None
        return self.iterator


class Batch:
    """A batch on its way. Its lists are popped by several threads, which is atomic: no lock."""

    __slots__ = (
        "bytes", "collated", "data", "dataset_state", "done", "ended", "errors", "index", "keys", "last", "nanos", "number",
        "pending", "pinned", "samples", "stream", "stream_at", "stream_ended", "taken", "todo", "whole",
    )  # fmt: skip

    def __init__(self, number: int, index: Any, keys: list[Any], whole: bool, stream: Stream | None) -> None:
        self.number, self.index, self.keys, self.whole, self.stream = number, index, keys, whole, stream
        count = len(keys)
        self.todo = list(range(count - 1, -1, -1))
        self.pending = [None] * (count - 1)  # whoever finds it empty has made the last sample
        self.samples: Any = [None] * count
        self.nanos = [0] * count
        self.errors: dict[int, BaseException] = {}
        self.data: Any = None
        self.dataset_state: Any = None
        self.stream_at, self.stream_ended = 0, False
        self.ended = False
        self.last = 0
        self.bytes: int | None = None
        self.taken = self.collated = self.pinned = self.done = 0  # moments: samples there, collated, pinned, all done

    def fail(self, at: int, error: BaseException, worker: int) -> None:
        """Keeps what went wrong, for the thread that asks for this batch."""
        if isinstance(error, StopIteration):  # it would end the epoch without a word
            wrapped = RuntimeError("the dataset or collate_fn raised StopIteration")
            wrapped.__cause__, error = error, wrapped
        if hasattr(error, "add_note"):
            what = f"sample {self.keys[at]}" if at < len(self.keys) and not self.whole else f"batch {self.number}"
            error.add_note(f"raised for {what} in feedwater's loader thread {worker}")
        self.errors[at] = error


class Crew:
    """The threads of an iterator, and what they do to a batch. With no threads, the caller does it.

    The share of their time that threads wait for the GIL is found like this. While they work, a watcher wakes every 20 ms
    and sees how late it is; where the system tells (Linux), its wait for a core is taken off. Late by more than 1 ms means
    that somebody held the GIL. The share of such wakes, times the share of the threads' time in which they did not compute,
    is ``gil_wait_share``: near 0 for threads that wait for a disk, up to (n - 1) / n for n threads of pure Python. It is an
    estimate: where threads wait for a disk while the training loop holds the GIL, it is too high.
    """

    def __init__(self, base: Any, threads: int, init: Callable[[int], None] | None) -> None:
        self.dataset, self.collate, self.auto = base._dataset, base._collate_fn, base._auto_collation
        self.drop_last = base._drop_last
        self.pin_device: Any = base._pin_memory_device if base._pin_memory else None
        self.pins = bool(base._pin_memory)
        self.device = torch.accelerator.current_device_index() if self.pins else None
        self.init = init
        self.pid = os.getpid()
        self.stopped = False
        self.tasks: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.finished: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self.started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.count = threads
        self.threads: list[threading.Thread] = []
        self.busy, self.work, self.cpu = [False] * threads, [0] * threads, [0] * threads
        self.quiet = threading.Lock()
        self.quiet.acquire()
        self.probes = self.late = 0
        self.seen = (0, 0, 0, 0)
        self.gil_wait_share: float | None = None

    def start(self) -> None:
        """Starts the threads. Each computes with one core, as torch's workers do."""
        intraop = torch.get_num_threads()
        single: queue.SimpleQueue[None] = queue.SimpleQueue()
        for me in range(self.count):
            thread = threading.Thread(target=self._run, args=(me, single), name=f"feedwater-{me}", daemon=True)
            self.threads.append(thread)
            thread.start()
        if _OPENMP and self.count:
            for _ in range(self.count):
                single.get()
            torch.set_num_threads(intraop)  # what threads that come later begin with: a worker has set it to 1
        if self.count and getattr(sys, "_is_gil_enabled", lambda: True)():
            watcher = threading.Thread(target=self._watch, name="feedwater-gil", daemon=True)
            self.threads.append(watcher)
            watcher.start()

    def stop(self) -> None:
        """Ends the threads after the sample they are at. Takes no lock: a garbage collection anywhere may call it."""
        if os.getpid() != self.pid or self.stopped:
            return
        self.stopped = True
        for _ in range(self.count):
            self.tasks.put(None)
        self.quiet.release()
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self.threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def put(self, batch: Batch) -> None:
        """Asks as many threads as can help to make a batch."""
        for _ in range(1 if batch.whole or batch.stream else min(self.count, len(batch.keys))):
            self.tasks.put(batch)

    def _run(self, me: int, single: queue.SimpleQueue[None]) -> None:
        if _OPENMP:
            torch.get_num_threads()  # a thread's first look at it takes over the process's number, later ones do not
            torch.set_num_threads(1)
        single.put(None)
        try:
            if self.device is not None:
                torch.accelerator.set_device_index(self.device)
            if self.init is not None:
                self.init(me)
        except BaseException as error:
            self.started.put(error)
            return
        self.started.put(None)
        while True:
            batch = self.tasks.get()
            if batch is None or self.stopped:
                return
            self.busy[me], began = True, _clock()
            self.make(batch, me)
            del batch
            self.work[me] += _clock() - began
            self.busy[me], self.cpu[me] = False, time.thread_time_ns()

    def make(self, batch: Batch, me: int) -> None:
        """Works on a batch until there is nothing left to do for this thread."""
        if batch.stream is None and not batch.whole:
            self._make_samples(batch, me)
            return
        began = _clock()
        try:
            if batch.stream is not None:
                self._read(batch, batch.stream)
            else:
                fetch = getattr(self.dataset, "__getitems__", None)
                batch.samples = fetch(batch.index) if fetch else []
        except BaseException as error:
            batch.fail(max(0, len(batch.keys) - 1), error, me)
        if batch.whole:
            batch.nanos = [_clock() - began]
        self._finish(batch, me)

    def _make_samples(self, batch: Batch, me: int) -> None:
        dataset, keys, samples, nanos = self.dataset, batch.keys, batch.samples, batch.nanos
        began = _clock()
        while not self.stopped:
            try:
                at = batch.todo.pop()
            except IndexError:
                return
            if not batch.errors:
                try:
                    samples[at] = dataset[keys[at]]
                except BaseException as error:
                    batch.fail(at, error, me)
            ended = _clock()
            nanos[at] = ended - began
            began = ended
            try:
                batch.pending.pop()
            except IndexError:
                batch.last = at
                self._finish(batch, me)
                return

    def _read(self, batch: Batch, stream: Stream) -> None:
        wanted = len(batch.index) if self.auto else 1
        batch.keys, batch.nanos, batch.samples = [], [], []
        while not stream.ended and len(batch.keys) < wanted:
            began = _clock()
            iterator = stream.samples()
            batch.keys.append(stream.count)
            try:
                batch.samples.append(next(iterator))
            except StopIteration:
                stream.ended = True
                batch.keys.pop()
                break
            batch.nanos.append(_clock() - began)
            stream.count += 1
        batch.ended = not batch.samples or (self.drop_last and len(batch.samples) < wanted)
        batch.last = len(batch.samples) - 1
        batch.stream_at, batch.stream_ended = stream.count, stream.ended
        if stream.stateful and not batch.ended:
            batch.dataset_state = copy.deepcopy(stream.dataset.state_dict())

    def _finish(self, batch: Batch, me: int) -> None:
        batch.taken = batch.collated = batch.pinned = _clock()
        if not batch.errors and not batch.ended:
            try:
                batch.data = self.collate(batch.samples if self.auto else batch.samples[0])
                batch.collated = batch.pinned = _clock()
                if self.pins:
                    batch.data = pin(batch.data, self.pin_device)  # type: ignore[no-untyped-call]
                    batch.pinned = _clock()
                batch.bytes = tensor_bytes(batch.data)
            except BaseException as error:
                batch.fail(len(batch.keys), error, me)
        batch.samples = batch.index = None
        batch.done = _clock()
        self.finished.put(batch)

    def _watch(self) -> None:
        try:
            file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            file = -1

        def queued() -> int:
            """How long this thread was ready to run and had no core; 0 where the system does not say."""
            return int(os.pread(file, 80, 0).split()[1]) if file >= 0 else 0

        busy, before = False, queued()
        began = _clock()
        while not self.quiet.acquire(timeout=_PROBE_NANOS / 1e9):
            late = _clock() - began - _PROBE_NANOS
            if busy and any(self.busy):
                self.probes += 1
                if late > _LATE_NANOS:
                    then, before = before, queued()
                    self.late += late - (before - then) > _LATE_NANOS
            busy = any(self.busy)
            began = _clock()
        if file >= 0:
            os.close(file)

    def measure(self) -> int:
        """Brings ``gil_wait_share`` up to date; the time that the threads have computed since the last call."""
        work, cpu = sum(self.work), sum(self.cpu)
        probes, late, work_then, cpu_then = self.seen
        if self.probes - probes >= _PROBES and work > work_then:
            waiting = 1 - min(1.0, (cpu - cpu_then) / (work - work_then))
            self.gil_wait_share = round((self.late - late) / (self.probes - probes) * waiting, 4)
            self.seen = (self.probes, self.late, work, cpu)
        return cpu


def tensor_bytes(data: Any) -> int | None:
    """Bytes of the tensors in a batch; ``None`` where there is too much to look through."""
    total, parts, left = 0, [data], _MOST_PARTS
    while parts:
        part = parts.pop()
        left -= 1
        if isinstance(part, torch.Tensor):
            total += part.numel() * part.element_size() if part.layout is torch.strided else 0
        elif isinstance(part, Mapping):
            parts.extend(part.values())
        elif isinstance(part, (list, tuple)):
            if len(part) > left:
                return None
            parts.extend(part)
        if left < 0:
            return None
    return total
