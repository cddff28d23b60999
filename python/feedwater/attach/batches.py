"""What did making a batch take?

torch's fetchers take samples from a dataset and collate them, in the training process or in a worker. A probe times both
there. A worker's figures go through a file of its own, a line for each batch, written before the batch is handed over: when
the training loop has the batch, the line is there. The data queue is left alone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .record import spent_nanos
from .stacks import Sampler

_SLOWEST = 4
# Looking up how long a thread had no core takes some microseconds: only where a sample takes far longer.
_LONG_SAMPLE_NANOS = 1_000_000
# Samples that are faster than this are not timed one by one.
_SHORT_SAMPLE_NANOS = 50_000
# All figures of a batch are gathered as long as that takes less than one part in so many of making it.
_SHARE = 1000
# A few looks say little about a single batch: what is known of the run counts for as much as ten.
_PRIOR_MICROS = 100_000
_ENOUGH_MICROS = 200_000


class Probe:
    """Times what one thread does to make batches."""

    def __init__(self, thread: int, alike: int = 1) -> None:
        self.thread = thread
        self.on = True
        self.spent_nanos = 0
        self.sampler = Sampler(thread, alike)
        self.last: dict[str, Any] | None = None
        self.on_batch: Callable[[dict[str, Any]], None] | None = None
        self._schedule = _open_schedule()
        self._rows = 0
        self._getitem = 0
        self._collate = 0
        self._slow: list[tuple[int, Any, str, int]] = []
        self._queued_at = 0
        self._dataset: Any = None
        self._batches = 0
        # What gathering takes, and every how-manieth batch can afford it.
        self._gather_nanos = 0
        self._every = 1

    def fetch(self, original: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        """Makes a batch."""
        self._rows = self._getitem = self._collate = 0
        self._batches += 1
        full = self._batches % self._every == 0
        queued = cpu = 0
        if full:
            self._slow = []
            self.sampler.recent.clear()
            self._queued_at = queued = self._queued()
            cpu = time.process_time_ns()
        ended = False
        began = time.perf_counter_ns()
        self.sampler.enter("getitem")
        try:
            return original(fetcher, index)
        except StopIteration:
            ended = True
            raise
        finally:
            self.sampler.phase = ""
            done, noting = time.perf_counter_ns(), spent_nanos()
            if not self._rows:
                # Samples are not timed one by one.
                self._rows = len(index) if isinstance(index, (list, tuple)) else 1
                self._getitem = max(done - began - self._collate, 0)
            elif fetcher.__class__.__name__ == "_MapDatasetFetcher" and self._getitem < _SHORT_SAMPLE_NANOS * self._rows:
                self.spent_nanos += self._rows * 2_000
                untime(fetcher)
            if not ended:
                if full:
                    self._finish(time.process_time_ns() - cpu, self._queued() - queued)
                    self._gather_nanos = max(spent_nanos() - noting, self._gather_nanos // 2)
                    self._every = 1 + _SHARE * self._gather_nanos // max(done - began, 1)
                else:
                    self._brief()
            self.spent_nanos += spent_nanos() - noting

    def _brief(self) -> None:
        self.last = {"rows": self._rows, "getitem": self._getitem, "collate": self._collate}
        if self.on_batch is not None:
            self.on_batch(self.last)

    def _finish(self, cpu: int, queued: int) -> None:
        try:
            batch: dict[str, Any] = {
                "rows": self._rows,
                "getitem": self._getitem,
                "collate": self._collate,
                "cpu": cpu,
                "slow": [[_key(self._dataset, index), *rest, nanos] for nanos, index, *rest in self._slow],
                "seen": [[*what, count] for what, count in self.sampler.take().items()],
            }
            if self._schedule is not None:
                batch["queued"] = max(queued, 0)
            self.last = batch
            if self.on_batch is not None:
                self.on_batch(batch)
        except Exception:  # noqa: BLE001
            self.last = None

    def item(self, dataset: Any, index: Any, take: Callable[[], Any]) -> Any:
        """Takes one sample."""
        began = time.perf_counter_ns()
        value = take()
        nanos = time.perf_counter_ns() - began
        self._getitem += nanos
        self._rows += 1
        queued = 0
        if nanos > _LONG_SAMPLE_NANOS:
            now = self._queued()
            queued, self._queued_at = max(now - self._queued_at, 0), now
        slow = self._slow
        recent = self.sampler.recent
        if len(slow) < _SLOWEST or nanos > slow[-1][0]:
            stage = max(set(recent), key=recent.count) if recent else ""
            slow.append((nanos, index, stage, min(queued, nanos)))
            slow.sort(key=lambda sample: -sample[0])
            del slow[_SLOWEST:]
            self._dataset = dataset
        recent.clear()
        return value

    def items(self, count: int, take: Callable[[], Any]) -> Any:
        """Takes many samples that the dataset makes together."""
        began = time.perf_counter_ns()
        value = take()
        self._getitem += time.perf_counter_ns() - began
        self._rows += count
        return value

    def collate(self, original: Callable[[Any], Any], samples: Any) -> Any:
        """Makes one batch of samples."""
        self.sampler.enter("collate")
        began = time.perf_counter_ns()
        try:
            return original(samples)
        finally:
            self._collate += time.perf_counter_ns() - began
            self.sampler.phase = ""

    def _queued(self) -> int:
        """How long this thread could have computed and had no core, where Linux says so."""
        if self._schedule is None:
            return 0
        try:
            return int(os.pread(self._schedule, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0


def _open_schedule() -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class TimedDataset:
    """A dataset whose samples are timed; all else is the dataset's own."""

    def __init__(self, dataset: Any, probe: Probe) -> None:
        self._feedwater_dataset = dataset
        self._feedwater_probe = probe

    def __getitem__(self, index: Any) -> Any:
        dataset = self._feedwater_dataset
        return self._feedwater_probe.item(dataset, index, lambda: dataset[index])

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._feedwater_dataset, name)
        if name == "__getitems__" and value:
            return lambda indices: self._feedwater_probe.items(len(indices), lambda: value(indices))
        return value


class TimedIterator:
    """A dataset's iterator whose samples are timed."""

    def __init__(self, iterator: Iterator[Any], probe: Probe) -> None:
        self._iterator = iterator
        self._probe = probe
        self._count = -1

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        self._count += 1
        return self._probe.item(None, self._count, self._iterator.__next__)


def time_fetcher(fetcher: Any, probe: Probe) -> None:
    """Has a fetcher tell a probe what it does."""
    if hasattr(fetcher, "dataset_iter"):
        fetcher.dataset_iter = TimedIterator(fetcher.dataset_iter, probe)
    else:
        fetcher.dataset = TimedDataset(fetcher.dataset, probe)
    collate = fetcher.collate_fn
    fetcher.collate_fn = lambda samples: probe.collate(collate, samples)


def untime(fetcher: Any) -> None:
    """Has a fetcher take samples as it would, which are too fast to be timed."""
    if isinstance(fetcher.dataset, TimedDataset):
        fetcher.dataset = fetcher.dataset._feedwater_dataset


def _key(dataset: Any, index: Any) -> str:
    """What to call a sample: its file, where the dataset has a list of them, else its number."""
    for _ in range(4):
        # A subset of another.
        indices, inner = getattr(dataset, "indices", None), getattr(dataset, "dataset", None)
        if indices is None or inner is None:
            break
        dataset, index = inner, indices[index]
    try:
        number = int(index)
        size = len(dataset)
        for value in list(vars(dataset).values()):
            if isinstance(value, (list, tuple)) and len(value) == size:
                path = _path(value[number])
                if path:
                    return os.path.basename(path)
    except Exception:  # noqa: BLE001
        pass
    return str(index)[:80]


def _path(value: Any) -> str:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    parts = value[:8] if isinstance(value, (list, tuple)) else (value,)
    for part in parts:
        if isinstance(part, os.PathLike):
            return str(part)
        if isinstance(part, str) and len(part) < 500 and (os.sep in part or os.path.splitext(part)[1][1:].isalnum()):
            return part
    return ""


def side_file(folder: str, pid: int | None, worker: int, seed: int) -> str:
    """Where a worker writes. Its seed is in the name as well, since process numbers come again."""
    return os.path.join(folder, f"{pid}-{worker}-{seed}.jsonl")


def observe_worker(folder: str, worker: int, workers: int, seed: int) -> Probe:
    """Observes this process, which is one of some workers."""
    probe = Probe(threading.get_ident(), workers)
    file = open(side_file(folder, os.getpid(), worker, seed), "w", encoding="utf-8")  # noqa: SIM115

    def write(batch: dict[str, Any]) -> None:
        batch["spent"] = probe.sampler.spent_nanos + probe.spent_nanos
        file.write(json.dumps(batch, separators=(",", ":")) + "\n")
        file.flush()

    probe.on_batch = write
    probe.sampler.start()
    return probe


class Crew:
    """The worker processes of one iterator, seen from the training process."""

    def __init__(self, folder: str, iterator: Any) -> None:
        seed = int(iterator._base_seed)
        self._paths = [side_file(folder, worker.pid, at, seed) for at, worker in enumerate(iterator._workers)]
        self._files: dict[int, Any] = {}
        self._read: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self._spent: dict[int, int] = {}

    def take(self, worker: int) -> dict[str, Any] | None:
        """What the last batch took that came from a worker. Its lines and its batches have the same order."""
        file = self._files.get(worker)
        if file is None:
            file = self._files[worker] = open(self._paths[worker], encoding="utf-8")  # noqa: SIM115
        line = ""
        while self._read[worker] < self.received[worker]:
            line = file.readline()
            self._read[worker] += 1
        if not line:
            return None
        batch: dict[str, Any] = json.loads(line)
        self._spent[worker] = batch.pop("spent", 0)
        return batch

    def spent(self) -> int:
        """What observing took of one worker's time."""
        return sum(self._spent.values()) // max(len(self._paths), 1)

    def close(self) -> int:
        """Removes the files. Says what observing took of one worker's time."""
        for file in self._files.values():
            file.close()
        for path in self._paths:
            try:
                os.remove(path)
            except OSError:
                pass
        self._files.clear()
        return self.spent()


def phases(batch: Mapping[str, Any]) -> dict[str, int]:
    """Nanoseconds of taking samples and of collating them."""
    return {"getitem": batch["getitem"], "collate": batch["collate"]}


class Work:
    """Turns what batches took into the record's `input`, and adds up calls."""

    def __init__(self) -> None:
        self._stages: dict[str, Counter[str]] = defaultdict(Counter)
        self._calls: Counter[tuple[str, str, str, str]] = Counter()
        self._nanos: Counter[str] = Counter()

    def learn(self, nanos: Mapping[str, int], seen: list[list[Any]]) -> None:
        """Of the whole run: what each phase took, and what was seen in it."""
        self._nanos.update(nanos)
        for phase, stage, call, place, count in seen:
            self._calls[(phase, stage, call, place)] += count
            # What is loaded at first use says nothing about the batches that follow.
            if stage != "import":
                self._stages[phase][stage] += count

    def knows_enough(self, phase: str) -> bool:
        """Whether what was seen of a phase so far would still hold if more were seen."""
        return self._stages[phase].total() >= _ENOUGH_MICROS

    def shares(self, phase: str, seen: list[list[Any]]) -> dict[str, float]:
        """The stages' shares of a phase: of this batch, and the less was seen of it, the more of the run so far."""
        here: Counter[str] = Counter()
        for at, stage, _, _, count in seen:
            if at == phase:
                here[stage] += count
        so_far = self._stages[phase] or Counter({"batch" if phase == "collate" else "transform": 1})
        total, known = here.total() + _PRIOR_MICROS, so_far.total()
        shares = {stage: (here[stage] + _PRIOR_MICROS * count / known) / total for stage, count in so_far.items()}
        return {**shares, "import": here["import"] / total} if here["import"] else shares

    def stages(self, nanos: Mapping[str, int], seen: list[list[Any]]) -> dict[str, int]:
        """Nanoseconds of each stage, from those of each phase."""
        work: Counter[str] = Counter()
        for phase, total in nanos.items():
            for stage, share in self.shares(phase, seen).items():
                work[stage] += round(total * share)
        return {stage: count for stage, count in work.most_common() if count > 0}

    def input(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The record's `input` of a batch."""
        work = self.stages(phases(batch), batch.get("seen", []))
        dearest = next(iter(work), "transform")
        made: dict[str, Any] = {"work_nanos": work}
        if "cpu" in batch:
            made["cpu_nanos"] = batch["cpu"]
        if "queued" in batch:
            made["queued_nanos"] = min(batch["queued"], batch["getitem"] + batch["collate"])
        made["slowest"] = [
            {"key": key, "stage": stage or dearest, "nanos": nanos, "queued_nanos": queued}
            for key, stage, queued, nanos in batch.get("slow", [])
        ]
        return made

    def calls(self, most: int) -> list[dict[str, Any]]:
        """The calls that took the most time."""
        looks: Counter[str] = Counter()
        for (phase, *_), count in self._calls.items():
            looks[phase] += count
        sums: Counter[tuple[str, str, str]] = Counter()
        for (phase, *what), count in self._calls.items():
            sums[(what[0], what[1], what[2])] += round(self._nanos[phase] * count / looks[phase])
        return [
            {"stage": stage, "call": call, "at": at, "nanos": nanos}
            for (stage, call, at), nanos in sums.most_common(most)
            if nanos
        ]


def size_of(batch: Any) -> tuple[int, int]:
    """Rows and bytes of a batch, as far as that is cheap: by its first tensors."""
    rows = total = 0
    left = [batch]
    seen = 0
    while left and seen < 64:
        value = left.pop()
        seen += 1
        if hasattr(value, "nbytes") and hasattr(value, "shape"):
            total += int(value.nbytes)
            if not rows and len(value.shape):
                rows = int(value.shape[0])
        elif isinstance(value, Mapping):
            left.extend(reversed(list(value.values())))
        elif isinstance(value, (list, tuple)):
            left.extend(reversed(value[:64]))
        elif isinstance(getattr(value, "data", None), Mapping):
            # What transformers' tokenizers and extractors give.
            left.append(value.data)
    return rows, total
