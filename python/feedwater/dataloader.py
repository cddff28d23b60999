"""How does someone who has a torch ``Dataset`` get batches without worker processes?

By changing one import. :class:`DataLoader` takes the arguments of ``torch.utils.data.DataLoader``, gives the same batches in
the same order and raises the same errors, and ``num_workers`` is a number of threads.

Why it is built so:

- A torch loader is built inside, so that checks, samplers and defaults are torch's own. It is not a subclass, because
  Accelerate takes subclasses apart and builds a plain torch loader from the pieces.
- All threads work on the samples of the next batch that is due. Torch gives a whole batch to one worker, so that its
  batches come in bursts.
- Indices are drawn in the thread that asks for batches, at the moments at which torch draws them: a sampler sees one
  thread, and the same generator gives the same order.
- Threads know their crew, never the iterator. So an iterator that nobody holds is collected, and its threads end.

What differs from torch, because threads share a process: ``get_worker_info()`` is ``None``; ``random``, ``numpy.random`` and
torch's default generator are shared, so random transforms that use them differ from run to run (give each sample its own
generator); an ``IterableDataset`` has one reader, whatever ``num_workers`` says; Python code in ``__getitem__`` holds the
GIL, which the training loop needs too. ``last_input["gil_wait_share"]`` says how much that costs.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, Sampler, SequentialSampler, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from feedwater._crew import Batch, Crew, Stream
from feedwater.profiling import observed

__all__ = ["DataLoader"]

_T_co = TypeVar("_T_co", covariant=True)
_clock = time.perf_counter_ns

_STATE_VERSION = 1
_RESUME = ("began", "consumed", "ahead", "samples", "stream_ended", "dataset_state", "between", "warm")
_SLOWEST = 4
_LOOK_SECONDS = 0.5  # how often a wait looks whether anybody is left to wait for


class _Arguments(torch.utils.data.DataLoader[Any]):
    """Torch's loader, for its checks, samplers and defaults. It is never iterated."""

    def check_worker_number_rationality(self) -> None:
        """Warns of nothing: threads that wait for a disk may well outnumber the cores."""


_Arguments.__name__ = "DataLoader"  # it stands in torch's messages


def _takes_batches(dataset: Any) -> bool:
    """Whether ``__getitems__`` does more than call ``__getitem__`` for each, which is all that torch's ``Subset`` adds."""
    kind = type(dataset)
    if isinstance(dataset, Subset) and (kind.__getitem__, kind.__getitems__) == (Subset.__getitem__, Subset.__getitems__):
        return _takes_batches(dataset.dataset)
    return bool(getattr(dataset, "__getitems__", None))


def _ambient() -> dict[str, Any]:
    """The states of the generators that a process shares."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    return state


def _set_ambient(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))


class _Book:
    """What a loader knows of its newest epoch: where it began, what was handed out, how the last batch was made."""

    def __init__(self) -> None:
        self.began: dict[str, Any] | None = None
        self.over = False
        self.consumed = 0  # batches handed out, counted from the first without a gap
        self.ahead: set[int] = set()  # and those after the gap, with in_order=False
        self.samples = 0  # of a stream
        self.stream_ended = False
        self.dataset_state: Any = None
        self.last: tuple[Batch, dict[str, Any], int] | None = None

    def count(self, number: int) -> None:
        """Books a batch that was handed out."""
        self.ahead.add(number)
        while self.consumed in self.ahead:
            self.ahead.remove(self.consumed)
            self.consumed += 1

    def last_input(self) -> dict[str, Any] | None:
        """The last batch's measurements as `input` of a record."""
        if self.last is None:
            return None
        batch, measured, waited = self.last
        work = {"dataset": sum(batch.nanos), "batch": batch.collated - batch.taken}
        if batch.pinned > batch.collated:
            work["pin"] = batch.pinned - batch.collated
        found: dict[str, Any] = {"work_nanos": work, **measured}
        if batch.bytes is not None:
            found["bytes"] = batch.bytes
        if not batch.whole:
            slowest = heapq.nlargest(_SLOWEST, zip(batch.nanos, range(len(batch.nanos))))
            found["slowest"] = [{"key": str(batch.keys[at]), "stage": "dataset", "nanos": nanos} for nanos, at in slowest]
            if waited and batch.nanos:
                finishing = batch.done - batch.taken
                stage = "batch" if finishing > batch.nanos[batch.last] else "dataset"
                found["waited_for"] = {"key": str(batch.keys[batch.last]), "stage": stage, "nanos": waited}
        return found


class _Iterator(_BaseDataLoaderIter):
    """The batches of an epoch; with ``persistent_workers``, of each epoch in turn.

    Several threads may ask it: each batch goes to one of them.
    """

    def __init__(self, loader: _Arguments, book: _Book, resume: dict[str, Any] | None) -> None:
        if loader.num_workers == 0 and loader.timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if loader.num_workers > 0 and (loader.prefetch_factor or 0) <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        keep = _ambient() if resume is not None else None
        before = _generators(loader, seed_follows=True) if loader.num_workers == 0 else None
        super().__init__(loader)
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        self._streams = isinstance(loader.dataset, IterableDataset)
        self._whole = self._auto_collation and not self._streams and _takes_batches(self._dataset)
        self._in_order = loader.in_order
        self._limit = max(2, (loader.prefetch_factor or 0) * loader.num_workers)
        self._lock = threading.Lock()
        self._broken: BaseException | None = None
        threads = min(loader.num_workers, 1) if self._streams else loader.num_workers
        self._crew = Crew(self, threads, loader.worker_init_fn)
        self._unstarted = threads
        self._stop = weakref.finalize(self, self._crew.stop)
        self._crew.start()
        self._cpu = 0
        self._outstanding: dict[int, Batch] = {}
        self._begin(loader, book, resume, keep, before)

    def _begin(
        self,
        loader: _Arguments,
        book: _Book,
        resume: dict[str, Any] | None,
        keep: dict[str, Any] | None,
        before: dict[str, Any] | None = None,
    ) -> None:
        """Begins an epoch. Torch calls ``iter(sampler)`` here once more when it has workers; so does this."""
        for left in self._outstanding.values():  # of an epoch that was left half-way
            left.todo.clear()
            if left.stream is not None:
                left.stream.ended = True
        self._outstanding, self._held = {}, dict[int, Batch]()
        self._book, self._drawn, self._drained, self._exhausted = book, 0, False, False
        state = None
        if resume is None:
            book.began = before if before is not None else _generators(loader, seed_follows=False)
            if before is None:
                super()._reset(loader)
        else:
            began = book.began = resume["began"]
            if keep is not None:
                _set_ambient(began["ambient"] or keep)
            for generator, saved in zip(_explicit(loader), began["generators"]):
                generator.set_state(saved)
            super()._reset(loader)
            if began["seed_follows"]:
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            book.consumed, book.ahead = resume["consumed"], set(resume["ahead"])
            state = book.dataset_state = resume["dataset_state"]
            book.samples, book.stream_ended = resume["samples"], resume["stream_ended"]
            self._drawn = sum(1 for _ in itertools.islice(self._sampler_iter, book.consumed))
            if self._drawn < book.consumed:
                raise RuntimeError(f"the sampler ended after {self._drawn} of {book.consumed} batches that were consumed")
            self._num_yielded = book.consumed
        self._due = self._drawn
        self._stream = Stream(self._dataset, book.samples, state) if self._streams else None
        if self._stream is not None:
            self._stream.ended = book.stream_ended  # a dataset that has ended may have gone back to its beginning
        if self._crew.count:
            self._fill()
        if resume is not None and keep is not None and not resume["between"]:
            _set_ambient(keep)  # the run that is continued had drawn from these before its state was taken

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        raise NotImplementedError("feedwater begins epochs with `_begin`")

    def _draw(self) -> Batch | None:
        """The next batch that the sampler asks for."""
        while not self._drained:
            number = self._drawn
            try:
                index = next(self._sampler_iter)
                self._drawn += 1
                if number in self._book.ahead:
                    continue
                keys = list(index) if self._auto_collation else [index]
            except StopIteration:
                self._drained = True
                return None
            except Exception as error:  # raised where its batch is due, so that the batches before are not lost
                self._drained = True
                batch = Batch(number, None, [], True, None)
                batch.errors[0] = error
                return batch
            except BaseException:
                self._broken = RuntimeError("the sampler was interrupted: make a new iterator")
                raise
            return Batch(number, index, keys, self._whole or not keys, self._stream)
        return None

    def _fill(self) -> None:
        while len(self._outstanding) < self._limit:
            batch = self._draw()
            if batch is None:
                return
            self._outstanding[batch.number] = batch
            if batch.errors:
                self._held[batch.number] = batch
            else:
                self._crew.put(batch)

    def _wait(self, answers: queue.SimpleQueue[Any], until: float | None) -> Any:
        while True:
            left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, until - time.monotonic())
            try:
                return answers.get(timeout=max(0.0, left))
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
                if self._crew.stopped or not any(thread.is_alive() for thread in self._crew.threads):
                    raise RuntimeError("the loader's threads have ended: make a new iterator") from None

    def _collect(self) -> Batch | None:
        """The batch that is due, or with ``in_order=False`` the first that is ready."""
        until = time.monotonic() + self._timeout if self._timeout > 0 else None
        while self._unstarted:
            error = self._wait(self._crew.started, until)
            self._unstarted -= 1
            self._broken = self._broken or error
        if self._broken is not None:
            self._stop()
            raise self._broken
        while self._outstanding:
            while self._due not in self._outstanding and self._due < self._drawn:
                self._due += 1
            number = self._due if self._in_order else next(iter(self._held), -1)
            if number in self._held:
                del self._outstanding[number]
                return self._held.pop(number)
            made: Batch = self._wait(self._crew.finished, until)
            if self._outstanding.get(made.number) is made:  # else it is of an epoch that was left
                self._held[made.number] = made
        return None

    def _next_data(self) -> Any:
        crew = self._crew
        if crew.count and crew.pid != os.getpid():
            raise RuntimeError("this iterator was made before a fork and its threads are not here: make a new one")
        with self._lock:
            asked = _clock()
            if self._exhausted:
                raise StopIteration
            ready = crew.finished.qsize() + len(self._held)
            if crew.count:
                batch = self._collect()
                cpu = crew.measure()
                cpu, self._cpu = cpu - self._cpu, cpu
            else:
                began = time.thread_time_ns()
                batch = self._draw()
                if batch is not None and not batch.errors:
                    crew.make(batch, 0)
                    crew.finished.get()
                cpu = time.thread_time_ns() - began
            if batch is None or batch.ended and not batch.errors:
                self._exhausted = self._book.over = True
                if not self._persistent_workers:
                    self._stop()
                raise StopIteration
            measured: dict[str, Any] = {"cpu_nanos": cpu, "ready": ready}
            if crew.gil_wait_share is not None:
                measured["gil_wait_share"] = crew.gil_wait_share
            self._book.count(batch.number)
            if batch.stream is not None:
                self._book.samples, self._book.stream_ended = batch.stream_at, batch.stream_ended
                self._book.dataset_state = batch.dataset_state
            self._book.last = (batch, measured, max(0, batch.done - asked))
            if crew.count:
                self._fill()
            data, batch.data, errors, batch.errors = batch.data, None, batch.errors, {}
            if not errors:
                return data
            error = errors[min(errors)]
            try:
                raise error  # the error itself: its type, its fields and the traceback of the thread
            finally:
                del batch, error, errors  # the traceback holds this frame

    @property
    def last_input(self) -> dict[str, Any] | None:
        """How the last batch was made, as ``input`` of a record; ``None`` before the first."""
        return self._book.last_input()

    def close(self) -> None:
        """Ends the threads now. Dropping the iterator does the same."""
        self._exhausted = True
        self._stop()

    def __getstate__(self) -> Any:
        raise NotImplementedError("an iterator cannot be pickled: pickle the loader, or keep its state_dict()")


def _explicit(loader: _Arguments) -> list[torch.Generator]:
    """The generators that the loader and its samplers were given, each once."""
    owners = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _generators(loader: _Arguments, *, seed_follows: bool) -> dict[str, Any]:
    """All that decides the order of an epoch, as it is now. ``seed_follows``: torch draws a seed after ``iter(sampler)``."""
    own = type(loader.sampler) is RandomSampler and loader.sampler.generator is not None
    fixed = type(loader.sampler) is SequentialSampler or isinstance(loader.dataset, IterableDataset)
    needed = not (own or fixed) or type(loader.batch_sampler) not in (BatchSampler, type(None))
    return {
        "generators": [generator.get_state() for generator in _explicit(loader)],
        "ambient": _ambient() if needed else None,
        "seed_follows": seed_follows,
    }


class DataLoader(Generic[_T_co]):
    """``torch.utils.data.DataLoader`` with threads. The arguments are torch's; ``num_workers`` counts threads.

    ``multiprocessing_context`` is checked and has no effect.
    """

    dataset: Dataset[_T_co]
    batch_size: int | None
    sampler: Sampler[Any] | Iterable[Any]
    batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None
    num_workers: int
    collate_fn: Callable[[list[Any]], Any]
    pin_memory: bool
    pin_memory_device: str
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool

    def __init__(
        self,
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        self._torch = _Arguments(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
            worker_init_fn, multiprocessing_context, generator, prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers, pin_memory_device=pin_memory_device, in_order=in_order,
        )  # fmt: skip
        self._iterator: _Iterator | None = None
        self._book = _Book()
        self._resume: dict[str, Any] | None = None
        self._epoch: int | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_torch":  # not there yet: while it is built or unpickled
            raise AttributeError(name)
        return getattr(self._torch, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._torch, name, value)  # torch says what may not be set any more

    def __len__(self) -> int:
        return len(self._torch)

    def __iter__(self) -> Iterator[Any]:
        book, resume = _Book(), self._resume
        kept = self._iterator if self.persistent_workers else None
        if kept is not None and not kept._crew.stopped and kept._crew.pid == os.getpid():
            with kept._lock:
                kept._begin(self._torch, book, resume, _ambient() if resume is not None else None)
            iterator = kept
        else:
            iterator = _Iterator(self._torch, book, resume)
            self._iterator = iterator if self.persistent_workers else None
        self._book, self._resume = book, None
        return observed(self, iterator)

    @property
    def last_input(self) -> dict[str, Any] | None:
        """How the last batch of the newest iterator was made, as ``input`` of a record; ``None`` before the first."""
        return self._book.last_input()

    def settings(self) -> dict[str, Any]:
        """How it is set up: ``settings`` of a record."""
        workers = int(self.num_workers)
        size = self.batch_size if self.batch_size is not None else getattr(self.batch_sampler, "batch_size", None)
        return {
            "loader": "feedwater.torch.DataLoader",
            "threads": workers,
            "prefetch": max(2, workers * int(self.prefetch_factor or 0)) if workers else None,
            "batch_size": size if isinstance(size, int) else None,
            "pinned": bool(self.pin_memory),
        }

    def set_epoch(self, epoch: int) -> None:
        """Tells the epoch to the sampler, the batch sampler and the dataset, those that want to know."""
        self._epoch = epoch
        for owner in self._owners():
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def _owners(self) -> list[Any]:
        owners = (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None), self.dataset)
        return list({id(owner): owner for owner in owners}.values())

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands: what was handed out, not what was made ahead.

        It holds the states of the generators at the beginning of the epoch and the number of batches since.
        """
        epoch = next((e for owner in self._owners() if isinstance(e := getattr(owner, "epoch", None), int)), self._epoch)
        state: dict[str, Any] = {"version": _STATE_VERSION, "epoch": epoch, "batch_size": self.batch_size}
        book = self._book
        if self._resume is not None:
            return {**state, **self._resume}
        position = {"consumed": 0, "ahead": list[int](), "samples": 0, "stream_ended": False, "dataset_state": None}
        if book.began is not None and not book.over:
            position = {name: getattr(book, name) for name in position}
            return {**state, **position, "ahead": sorted(book.ahead), "began": book.began, "between": False, "warm": False}
        # With persistent workers torch draws a seed for the first epoch only: a new loader has to know.
        began = {**_generators(self._torch, seed_follows=False), "ambient": None}
        return {**state, **position, "began": began, "between": True, "warm": self._iterator is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterator go on where ``state`` was taken; samples that were consumed are not loaded again.

        The sampler is asked again for the batches that were consumed. An ``IterableDataset`` goes on by its own
        ``load_state_dict`` if it has one; else it is read from the beginning and what was consumed is thrown away, which
        takes time and relies on the same samples coming again.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(f"state has version {state.get('version')!r}, and this loader knows {_STATE_VERSION}")
        if state["consumed"] and state["batch_size"] != self.batch_size:
            raise ValueError(f"state was taken with batch_size={state['batch_size']}, and this loader has {self.batch_size}")
        if len(state["began"]["generators"]) != len(_explicit(self._torch)):
            raise ValueError("state was taken with another number of generators: pass `generator` as in that run")
        if state["epoch"] is not None:
            self.set_epoch(state["epoch"])
        self._book, self._resume = _Book(), None
        if state["warm"] or not state["between"]:
            self._resume = {key: state[key] for key in _RESUME}
        else:
            for generator, saved in zip(_explicit(self._torch), state["began"]["generators"]):
                generator.set_state(saved)

    def __getstate__(self) -> dict[str, Any]:
        return {"torch": self._torch, "epoch": self._epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._torch, self._epoch = state["torch"], state["epoch"]
        self._iterator, self._book, self._resume = None, _Book(), None
