"""Is the threaded ``DataLoader`` torch's, seen from outside? Torch itself is what each answer is held against."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import IterableDataset, Sampler, Subset, WeightedRandomSampler, get_worker_info  # noqa: E402
from torch.utils.data import DataLoader as TorchLoader  # noqa: E402

from feedwater.dataloader import DataLoader  # noqa: E402

HERE = str(Path(__file__).parent)
LINUX = sys.platform.startswith("linux")


class Squares(torch.utils.data.Dataset):
    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return {"x": torch.full((3,), float(index)), "y": index * index, "name": f"clip{index}"}


class Batched(Squares):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Count(IterableDataset):
    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __iter__(self) -> Any:
        assert get_worker_info() is None
        return (torch.tensor([n, n * n]) for n in range(self.length))


class SizedCount(Count):
    def __len__(self) -> int:
        return self.length


class Stateful(Count):
    """Remembers its place, and how many samples it has read in all."""

    def __init__(self, length: int = 23) -> None:
        super().__init__(length)
        self.at = 0
        self.read = 0

    def __iter__(self) -> Any:
        while self.at < self.length:
            self.at += 1
            self.read += 1
            yield torch.tensor(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Eager(Sampler):
    """Draws its order when it is asked for an iterator, as transformers' samplers do."""

    def __init__(self, length: int, generator: Any = None) -> None:
        self.length, self.generator = length, generator

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter(torch.randperm(self.length, generator=self.generator).tolist())


class Rolling(Sampler):
    """Draws from Python's own generator, one index at a time."""

    def __iter__(self) -> Any:
        order = list(range(23))
        random.shuffle(order)
        yield from order


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def threads() -> list[str]:
    ours = re.compile(r"feedwater-(\d+|gil)")
    return [thread.name for thread in threading.enumerate() if ours.fullmatch(thread.name)]


def seeded(seed: int = 7) -> Any:
    return torch.Generator().manual_seed(seed)


def names(batch: list[Any]) -> list[str]:
    return [sample["name"] for sample in batch]


MAP: list[dict[str, Any]] = [
    {},
    {"batch_size": 4},
    {"batch_size": 4, "drop_last": True},
    {"batch_size": 100},
    {"batch_size": None},
    {"batch_size": None, "shuffle": True},
    {"batch_size": 5, "shuffle": True},
    {"batch_size": 5, "shuffle": True, "seed": 3},
    {"batch_size": 5, "shuffle": True, "drop_last": True, "seed": 3},
    {"batch_size": 4, "collate_fn": names},
    {"batch_size": 4, "sampler": [3, 1, 2, 2, 0]},
    {"batch_sampler": [[1, 2], [0], [5, 4, 3]]},
    {"batch_sampler": [(1, 2), (0,)]},
    {"batch_sampler": [[], [1]], "collate_fn": len},
    {"batch_size": 3, "sampler": WeightedRandomSampler([0.1] * 23, 40)},
    {"batch_size": 3, "eager": True},
    {"batch_size": 3, "eager": True, "seed": 5},
    {"batch_size": 3, "replacement": True, "seed": 5},
]


def build(kind: Any, dataset: Any, num_workers: int, arguments: dict[str, Any], **more: Any) -> Any:
    """A loader of either kind with its own generator and sampler, so that two of them start alike."""
    arguments = {**arguments, **more}
    seed = arguments.pop("seed", None)
    generator = None if seed is None else seeded(seed)
    if arguments.pop("eager", False):
        arguments["sampler"] = Eager(len(dataset), generator)
    if arguments.pop("replacement", False):
        arguments["sampler"] = torch.utils.data.RandomSampler(dataset, True, 100, generator)
    return kind(dataset, num_workers=num_workers, generator=generator, **arguments)


def epochs(kind: Any, dataset: Any, num_workers: int, arguments: dict[str, Any], count: int = 2, **more: Any) -> list[Any]:
    torch.manual_seed(11)
    loader = build(kind, dataset, num_workers, arguments, **more)
    got = [list(loader) for _ in range(count)]
    return [*got, torch.rand(1)]  # and torch's own generator stands where torch leaves it


@pytest.mark.parametrize("dataset", [Squares(), Batched(), Subset(Squares(40), range(2, 25)), Subset(Batched(40), range(23))])
@pytest.mark.parametrize("arguments", MAP, ids=str)
def test_gives_what_torch_gives_in_the_calling_thread(dataset: Any, arguments: dict[str, Any]) -> None:
    assert same(epochs(DataLoader, dataset, 0, arguments), epochs(TorchLoader, dataset, 0, arguments))


@pytest.mark.skipif(not LINUX, reason="torch's workers need fork to start fast")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("arguments", MAP, ids=str)
def test_gives_what_torch_gives_with_as_many_workers(arguments: dict[str, Any], persistent: bool) -> None:
    options = {"multiprocessing_context": "fork", "persistent_workers": persistent}
    ours = epochs(DataLoader, Squares(), 2, arguments, **options)
    assert same(ours, epochs(TorchLoader, Squares(), 2, arguments, **options))


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("dataset", [Squares(), Batched(), Subset(Squares(40), range(2, 25))])
@pytest.mark.parametrize("arguments", MAP[:5] + MAP[9:14], ids=str)  # those that draw no random numbers
def test_any_number_of_threads_keeps_the_order(dataset: Any, arguments: dict[str, Any], num_workers: int) -> None:
    for more in ({}, {"prefetch_factor": 1}, {"prefetch_factor": 7, "persistent_workers": True}):
        ours = epochs(DataLoader, dataset, num_workers, arguments, **more)
        assert same(ours[:2], epochs(TorchLoader, dataset, 0, arguments)[:2])


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}, {"batch_size": 23}], ids=str
)
def test_an_iterable_dataset_comes_in_the_order_of_no_workers(arguments: dict[str, Any], num_workers: int) -> None:
    torch_gives = epochs(TorchLoader, Count(), 0, arguments)[:2]
    assert same(epochs(DataLoader, Count(), num_workers, arguments)[:2], torch_gives)
    if num_workers:
        assert same(epochs(DataLoader, Count(), num_workers, arguments, persistent_workers=True)[:2], torch_gives)
    assert threads() == []


def test_lengths_and_attributes_are_torchs() -> None:
    for dataset, arguments in ((Squares(), {"batch_size": 4, "num_workers": 2}), (SizedCount(), {"batch_size": 4}), (Squares(), {})):
        ours, theirs = DataLoader(dataset, **arguments), TorchLoader(dataset, **arguments)
        assert len(ours) == len(theirs)
        for name in (
            "dataset batch_size num_workers collate_fn pin_memory drop_last generator timeout prefetch_factor "
            "persistent_workers worker_init_fn in_order multiprocessing_context pin_memory_device"
        ).split():
            assert getattr(ours, name) == getattr(theirs, name), name
        assert type(ours.sampler) is type(theirs.sampler)
        assert type(ours.batch_sampler) is type(theirs.batch_sampler)
    assert not isinstance(ours, TorchLoader)
    with pytest.raises(TypeError):
        len(DataLoader(Count()))


WRONG: list[tuple[Any, dict[str, Any]]] = [
    (Squares(), {"num_workers": -1}),
    (Squares(), {"timeout": -1}),
    (Squares(), {"prefetch_factor": 2}),
    (Squares(), {"num_workers": 1, "prefetch_factor": -2}),
    (Squares(), {"num_workers": 1, "prefetch_factor": 0}),
    (Squares(), {"persistent_workers": True}),
    (Squares(), {"timeout": 1}),
    (Squares(), {"batch_size": 0}),
    (Squares(), {"batch_size": -3}),
    (Squares(), {"batch_size": 1.5}),
    (Squares(), {"batch_size": True}),
    (Squares(), {"drop_last": 1}),
    (Squares(), {"batch_size": None, "drop_last": True}),
    (Squares(), {"sampler": [0], "shuffle": True}),
    (Squares(), {"batch_sampler": [[0]], "batch_size": 2}),
    (Squares(), {"batch_sampler": [[0]], "shuffle": True}),
    (Squares(), {"batch_sampler": [[0]], "sampler": [0]}),
    (Squares(), {"batch_sampler": [[0]], "drop_last": True}),
    (Squares(), {"multiprocessing_context": "fork"}),
    (Squares(), {"multiprocessing_context": "nonsense", "num_workers": 1}),
    (Squares(), {"multiprocessing_context": 3, "num_workers": 1}),
    (Squares(0), {"shuffle": True}),
    (Count(), {"shuffle": True}),
    (Count(), {"sampler": [0]}),
    (Count(), {"batch_sampler": [[0]]}),
    (Squares(), {"batch_size": "4"}),
    (Squares(), {"nonsense": 1}),
]


@pytest.mark.parametrize(("dataset", "arguments"), WRONG, ids=str)
def test_wrong_arguments_give_torchs_errors(dataset: Any, arguments: dict[str, Any]) -> None:
    raised = []
    for kind in (TorchLoader, DataLoader):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            iter(kind(dataset, **arguments))
        raised.append((caught.type, str(caught.value)))
    assert raised[0] == raised[1]


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"])
def test_what_torch_forbids_to_set_stays_forbidden(name: str) -> None:
    messages = []
    for kind in (TorchLoader, DataLoader):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            setattr(kind(Squares()), name, 1)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinning_is_done_where_the_batch_is_made_on_the_right_device(num_workers: int, monkeypatch: Any) -> None:
    devices: list[int] = []
    pinned: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    monkeypatch.setattr("feedwater._crew.pin", lambda data, device: (pinned.append(device), data)[1])
    loader = DataLoader(Squares(), 4, num_workers=num_workers, pin_memory=True)
    assert same(list(loader), list(TorchLoader(Squares(), 4)))
    assert pinned == ["cuda"] * 6
    assert devices == [3] * num_workers
    assert loader.last_input is not None
    assert loader.last_input["work_nanos"]["pin"] > 0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a device")
def test_pinning_without_a_device_warns_as_torch_does() -> None:
    said = []
    for kind in (TorchLoader, DataLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(list(kind(Squares(), 4, pin_memory=True))) == 6
        said.append([(warning.category, str(warning.message)) for warning in caught])
    assert said[0] == said[1] != []


def test_more_threads_than_cores_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(DataLoader(Squares(), num_workers=64))) == 23


# State


STATES: list[tuple[Any, dict[str, Any]]] = [
    (Squares, {"batch_size": 4}),
    (Squares, {"batch_size": 4, "shuffle": True}),
    (Squares, {"batch_size": 4, "shuffle": True, "seed": 3}),
    (Squares, {"batch_size": 4, "eager": True, "seed": 3}),
    (Squares, {"batch_size": 4, "eager": True}),
    (Squares, {"batch_size": 16, "replacement": True, "seed": 3}),
    (Squares, {"batch_size": None, "shuffle": True}),
    (Squares, {"batch_size": 4, "sampler": Rolling()}),
    (Batched, {"batch_size": 4, "shuffle": True}),
    (Count, {"batch_size": 4}),
    (Stateful, {"batch_size": 4}),
]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("dataset", "arguments"), STATES, ids=str)
def test_a_state_of_every_step_continues_with_the_rest(
    dataset: Any, arguments: dict[str, Any], num_workers: int, persistent: bool
) -> None:
    if persistent and not num_workers:
        pytest.skip("torch refuses it")
    more = {"persistent_workers": persistent}

    def run(loader: Any, rounds: int) -> Any:
        """Each batch of the rest, and before each, a checkpoint; a number drawn each step stands for the training."""
        for _ in range(rounds):
            yield None, loader.state_dict(), torch.get_rng_state(), random.getstate()
            for batch in loader:
                yield (batch, torch.rand(1)), loader.state_dict(), torch.get_rng_state(), random.getstate()

    torch.manual_seed(1)
    random.seed(1)
    steps = list(run(build(DataLoader, dataset(), num_workers, arguments, **more), 3))
    batches = [step[0] for step in steps]
    starts = [at for at, batch in enumerate(batches) if batch is None]
    for at, (_, state, rng, python) in enumerate(steps[: starts[2] + 1]):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        torch.manual_seed(99)
        random.seed(99)
        loader = build(DataLoader, dataset(), num_workers, arguments, **{**more, **({"seed": 50} if "seed" in arguments else {})})
        loader.load_state_dict(torch.load(file, weights_only=True))
        torch.set_rng_state(rng)
        random.setstate(python)
        if batches[at] is None:
            rest = list(run(loader, 3 - starts.index(at)))[1:]
        else:
            rest = [((batch, torch.rand(1)), loader.state_dict()) for batch in loader]
            rest += run(loader, 2 - sum(start < at for start in starts[1:]))
        assert same([step[0] for step in rest], batches[at + 1 :]), at


def test_a_state_can_be_taken_from_what_was_restored() -> None:
    loader = DataLoader(Squares(), 4, shuffle=True, num_workers=2)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    second = DataLoader(Squares(), 4, shuffle=True, num_workers=2)
    second.load_state_dict(state)
    assert same(dict(sorted(second.state_dict().items())), dict(sorted(state.items())))
    iterator = iter(second)
    assert same(next(iterator), rest[0])
    third = DataLoader(Squares(), 4, shuffle=True)
    third.load_state_dict(second.state_dict())
    assert same(list(third), rest[1:])


def test_consumed_samples_are_not_loaded_again() -> None:
    seen: list[int] = []

    class Seen(Squares):
        def __getitem__(self, index: int) -> Any:
            seen.append(index)
            return index

    loader = DataLoader(Seen(), 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    iterator.close()
    seen.clear()
    loader.load_state_dict(state)
    assert torch.cat(list(loader)).tolist() == list(range(4, 23))
    assert sorted(seen) == list(range(4, 23))


def test_a_dataset_with_a_state_is_not_read_again() -> None:
    dataset = Stateful()
    loader = DataLoader(dataset, 4, num_workers=1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    assert state["dataset_state"] == {"at": 8}, "what was consumed, not what was read ahead"
    iterator.close()
    dataset = Stateful()
    loader = DataLoader(dataset, 4, num_workers=1)
    loader.load_state_dict(state)
    assert torch.cat(list(loader)).tolist() == list(range(8, 23))
    assert dataset.read == 15


def test_a_state_out_of_order_leaves_out_what_was_handed_out() -> None:
    gate = threading.Event()

    class Gated(Squares):
        def __getitem__(self, index: int) -> int:
            if index == 0:
                gate.wait()
            return index

    loader = DataLoader(Gated(8), 1, num_workers=2, in_order=False)
    iterator = iter(loader)
    first = [int(next(iterator)) for _ in range(3)]
    assert first == [1, 2, 3], "the first sample holds up none of the others"
    state = loader.state_dict()
    gate.set()
    assert sorted(first + [int(x) for x in iterator]) == list(range(8))
    loader.load_state_dict(state)
    assert sorted(int(x) for x in loader) == [0, 4, 5, 6, 7]


def test_states_that_do_not_fit_are_refused() -> None:
    loader = DataLoader(Squares(), 4)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match="version"):
        loader.load_state_dict({**state, "version": 2})
    with pytest.raises(ValueError, match="batch_size"):
        DataLoader(Squares(), 5).load_state_dict(state)
    with pytest.raises(ValueError, match="generator"):
        DataLoader(Squares(), 4, shuffle=True, generator=seeded()).load_state_dict(state)
    small = DataLoader(Squares(3), 4)
    small.load_state_dict({**state, "consumed": 5})
    with pytest.raises(RuntimeError, match="ended after 1 of 5"):
        iter(small)


def test_the_epoch_is_told_and_restored() -> None:
    sampler: Any = torch.utils.data.DistributedSampler(Squares(), num_replicas=2, rank=0)
    loader = DataLoader(Squares(), 4, sampler=sampler)
    loader.set_epoch(5)
    assert sampler.epoch == 5
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), list(iterator)
    sampler.set_epoch(0)
    loader.load_state_dict(state)
    assert same(list(loader), rest)


# Errors


class Broken(Squares):
    def __init__(self, error: Any, at: int = 9) -> None:
        super().__init__()
        self.error, self.at = error, at

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            raise self.error
        return index


class Coded(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.code = code


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("error", [ValueError("bad clip"), KeyError("k"), Coded(4, "why"), SystemExit(3)], ids=repr)
def test_an_error_in_the_dataset_comes_where_its_batch_is_due(error: Any, num_workers: int) -> None:
    iterator = iter(DataLoader(Broken(error), 4, num_workers=num_workers))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    assert next(iterator).tolist() == [4, 5, 6, 7]
    with pytest.raises(type(error)) as caught:
        next(iterator)
    assert caught.value is error
    shown = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    assert "in __getitem__" in shown
    if sys.version_info >= (3, 11):
        assert "sample 9 in feedwater" in shown
    assert next(iterator).tolist() == [12, 13, 14, 15], "as torch: the next batches can still be had"
    assert len(list(iterator)) == 2
    del caught, iterator, shown
    error.__traceback__ = None
    assert threads() == []


def test_an_error_that_was_caught_keeps_no_thread() -> None:
    gc.disable()  # so that a cycle would show
    try:
        for dataset in (Broken(ValueError("bad clip"), 0), Batched(0)):
            iterator = iter(DataLoader(dataset, sampler=range(9), num_workers=2))
            with pytest.raises((ValueError, IndexError)) as caught:
                next(iterator)
            assert iterator.last_input is not None
            del caught, iterator
            if isinstance(dataset, Broken):
                dataset.error.__traceback__ = None
            assert threads() == []
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stop_iteration_in_a_dataset_does_not_end_the_epoch_silently(num_workers: int) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DataLoader(Broken(StopIteration()), 4, num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_collate_and_in_a_sampler_comes_in_its_place(num_workers: int) -> None:
    def collate(batch: list[Any]) -> Any:
        if batch[0]["y"] == 16:
            raise LookupError("collate")
        return len(batch)

    iterator = iter(DataLoader(Squares(), 4, collate_fn=collate, num_workers=num_workers))
    assert next(iterator) == 4
    with pytest.raises(LookupError, match="collate"):
        next(iterator)
    assert list(iterator) == [4, 4, 4, 3]

    def indices() -> Any:
        yield from range(6)
        raise OSError("sampler")

    class Failing(Sampler):
        def __iter__(self) -> Any:
            return indices()

    iterator = iter(DataLoader(Squares(), 2, sampler=Failing(), collate_fn=len, num_workers=num_workers))
    assert [next(iterator) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(OSError, match="sampler"):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_an_iterable_dataset_comes_in_its_place(num_workers: int) -> None:
    class Failing(IterableDataset):
        def __iter__(self) -> Any:
            yield from range(6)
            raise OSError("stream")

    iterator = iter(DataLoader(Failing(), 4, num_workers=num_workers))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="stream") as caught:
        next(iterator)
    assert iterator.last_input is not None
    assert getattr(caught.value, "__notes__", ["sample 6"])[0].startswith(("raised for sample 6", "sample 6"))
    assert list(iterator) == []


def test_the_first_of_several_bad_samples_is_named() -> None:
    both = threading.Barrier(2)

    class Two(Squares):
        def __getitem__(self, index: int) -> int:
            if index < 2:
                both.wait()
                raise ValueError(f"sample {index}")
            return index

    with pytest.raises(ValueError, match="sample 0"):
        next(iter(DataLoader(Two(), 4, num_workers=2)))


def test_worker_init_fn_runs_in_each_thread_and_its_error_is_raised() -> None:
    called: dict[int, int] = {}
    list(DataLoader(Squares(), num_workers=3, worker_init_fn=lambda i: called.update({i: threading.get_ident()})))
    assert sorted(called) == [0, 1, 2]
    assert threading.get_ident() not in called.values()

    def refuse(worker: int) -> None:
        if worker == 1:
            raise PermissionError("no")

    iterator = iter(DataLoader(Squares(), num_workers=3, worker_init_fn=refuse))
    for _ in range(2):
        with pytest.raises(PermissionError, match="no"):
            next(iterator)
    assert threads() == []


def test_a_timeout_is_torchs_and_can_be_waited_out() -> None:
    gate = threading.Event()

    class Slow(Squares):
        def __getitem__(self, index: int) -> int:
            gate.wait()
            return index

    iterator = iter(DataLoader(Slow(2), num_workers=1, timeout=0.01))
    with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0.01 seconds$"):
        next(iterator)
    gate.set()
    iterator._timeout = 60
    assert [int(x) for x in iterator] == [0, 1]


# Threads


def test_all_threads_work_on_the_same_batch() -> None:
    together = threading.Barrier(4)

    class Meeting(Squares):
        def __getitem__(self, index: int) -> int:
            together.wait(60)
            return index

    assert [batch.tolist() for batch in DataLoader(Meeting(8), 4, num_workers=4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_more_is_made_ahead_than_was_asked_for() -> None:
    made: list[int] = []
    four = threading.Semaphore(0)

    class Counting(Squares):
        def __getitem__(self, index: int) -> int:
            made.append(index)
            four.release()
            return index

    iterator = iter(DataLoader(Counting(), 1, num_workers=1, prefetch_factor=4))
    for _ in range(4):
        four.acquire()
    assert iterator._outstanding.keys() == {0, 1, 2, 3}
    assert sorted(made) == [0, 1, 2, 3]
    next(iterator)
    four.acquire()
    assert sorted(made) == [0, 1, 2, 3, 4]
    iterator.close()


@pytest.mark.parametrize("dataset", [Squares(1000), Batched(1000), Count(1000)])
@pytest.mark.parametrize("persistent", [False, True])
def test_dropped_half_way_no_thread_is_left(dataset: Any, persistent: bool) -> None:
    loader = DataLoader(dataset, 4, num_workers=3, persistent_workers=persistent)
    for _ in loader:
        assert threads()
        break
    assert bool(threads()) is persistent
    assert len(list(loader)) == 250
    del loader
    assert threads() == []


def test_an_iterator_in_a_cycle_is_collected() -> None:
    iterator: Any = iter(DataLoader(Squares(), num_workers=2))
    next(iterator)
    iterator.itself = iterator
    del iterator
    gc.collect()
    assert threads() == []


def test_an_exception_in_the_training_loop_leaves_no_thread() -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in DataLoader(Squares(), num_workers=2):
            raise ZeroDivisionError
    gc.collect()
    assert threads() == []


def test_persistent_threads_are_the_same_in_each_epoch() -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=True)
    list(loader)
    first = sorted(thread.ident or 0 for thread in threading.enumerate())
    iterator = iter(loader)
    next(iterator)
    assert same(list(loader), list(TorchLoader(Squares(), 4))), "an epoch that is begun anew begins at the beginning"
    assert sorted(thread.ident or 0 for thread in threading.enumerate()) == first


def test_torchs_own_number_of_threads_stays() -> None:
    inside: list[int] = []

    class Asking(Squares):
        def __getitem__(self, index: int) -> int:
            inside.append(torch.get_num_threads())
            return index

    before = torch.get_num_threads()
    list(DataLoader(Asking(), num_workers=2))
    assert torch.get_num_threads() == before
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [before]
    assert set(inside) == {1}


def test_two_threads_share_an_iterator() -> None:
    iterator = iter(DataLoader(Squares(400), 1, num_workers=2))
    got: list[list[int]] = [[], []]

    def take(into: list[int]) -> None:
        into.extend(int(batch["y"]) for batch in iterator)

    consumers = [threading.Thread(target=take, args=(into,)) for into in got]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
    assert sorted(got[0] + got[1]) == [n * n for n in range(400)]


def test_pickle_takes_the_loader_and_not_the_iterator() -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=True)
    expected = list(loader)
    for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert same(list(other), expected)
        assert other.num_workers == 2
    with pytest.raises(NotImplementedError, match="pickle the loader"):
        pickle.dumps(iter(loader))


# Processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("persistent", [False, True])
def test_in_a_forked_child_the_old_iterator_says_so_and_a_new_one_works(persistent: bool) -> None:
    script = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from feedwater.dataloader import DataLoader
loader = DataLoader(range(40), 4, num_workers=2, persistent_workers={persistent})
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        assert "fork" in str(error), error
        assert sum(len(batch) for batch in loader) == 40
        del iterator
        sys.exit(17)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
assert sum(len(batch) for batch in iterator) == 36
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_while_waiting_ends_the_process() -> None:
    script = """
import threading
from feedwater.dataloader import DataLoader
class Stuck:
    def __len__(self): return 8
    def __getitem__(self, index):
        print("waiting", flush=True)
        threading.Event().wait(3600)
for _ in DataLoader(Stuck(), num_workers=1):
    pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("persistent", [False, True])
def test_the_interpreter_exits_with_an_iterator_half_way(persistent: bool) -> None:
    script = f"""
import torch
from feedwater.dataloader import DataLoader
class Work:
    def __len__(self): return 100000
    def __getitem__(self, index): return torch.rand(64, 64) @ torch.rand(64, 64)
loader = DataLoader(Work(), 8, num_workers=3, persistent_workers={persistent})
iterator = iter(loader)
next(iterator)
print("done", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# What is measured


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_batch_says_how_it_was_made(num_workers: int) -> None:
    loader = DataLoader(Squares(), 6, num_workers=num_workers)
    assert loader.last_input is None
    iterator = iter(loader)
    for number, batch in enumerate(iterator):
        found = loader.last_input
        assert found == iterator.last_input
        assert found is not None
        rows = len(batch["y"])
        keys = {str(key) for key in range(6 * number, 6 * number + rows)}
        assert set(found["work_nanos"]) == {"dataset", "batch"}
        assert found["work_nanos"]["dataset"] >= sum(slow["nanos"] for slow in found["slowest"]) > 0
        assert found["bytes"] == rows * (3 * 4 + 8)
        assert len(found["slowest"]) == min(4, rows)
        assert {slow["key"] for slow in found["slowest"]} <= keys
        nanos = [slow["nanos"] for slow in found["slowest"]]
        assert nanos == sorted(nanos, reverse=True)
        assert found["cpu_nanos"] >= 0
        assert 0 <= found["ready"] <= 4
        if "waited_for" in found:
            assert found["waited_for"]["key"] in keys
        assert 0 <= found.get("gil_wait_share", 0) <= 1
        if num_workers == 0:
            assert found["waited_for"]["nanos"] > 0
            assert "gil_wait_share" not in found


def test_the_sample_that_was_waited_for_is_named(monkeypatch: Any) -> None:
    gate = threading.Event()

    class Held(Squares):
        def __getitem__(self, index: int) -> int:
            if index == 2:
                gate.wait()
            return index

    loader = DataLoader(Held(3), 3, num_workers=1)
    iterator = iter(loader)
    wait = iterator._wait
    monkeypatch.setattr(iterator, "_wait", lambda *arguments: (gate.set(), wait(*arguments))[1])  # opened once it is asked for
    next(iterator)
    found = loader.last_input
    assert found is not None
    assert found["ready"] == 0
    assert found["waited_for"]["key"] == "2"
    assert found["waited_for"]["nanos"] > 0
    iterator.close()


def test_a_record_line_can_be_written_from_it() -> None:
    import json

    loader = DataLoader(Count(), 4, num_workers=1)
    keys = []
    for _ in loader:
        line = json.loads(json.dumps(loader.last_input))
        keys += [int(slow["key"]) for slow in line["slowest"]]
    assert sorted(keys) == list(range(23)), "samples of a stream are called by their place in it"


def test_bytes_are_left_out_where_there_is_too_much_to_look_through() -> None:
    loader = DataLoader(Squares(), 4, collate_fn=lambda batch: [[0] * 600] * 8)
    next(iter(loader))
    assert loader.last_input is not None
    assert "bytes" not in loader.last_input


def test_probes_become_a_share() -> None:
    iterator = iter(DataLoader(Squares(), num_workers=2))
    list(iterator)
    crew = iterator._crew
    crew.seen, crew.gil_wait_share = (0, 0, 0, 0), None
    crew.probes, crew.late, crew.work, crew.cpu = 9, 9, [50, 50], [25, 25]
    crew.measure()
    assert crew.gil_wait_share is None, "too few"
    crew.probes, crew.late = 40, 40
    crew.measure()
    assert crew.gil_wait_share == 0.5, "two threads of pure Python: each waits half of the time"
    crew.probes, crew.work, crew.cpu = 80, [150, 150], [25, 25]
    crew.measure()
    assert crew.gil_wait_share == 0, "threads that wait for a disk: the GIL was free at each probe"
