"""Is the threaded ``DataLoader`` torch's, seen from outside? Torch itself is what each answer is held against."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from feedwater.dataloader import DataLoader  # noqa: E402
from torch.utils.data import DataLoader as TorchLoader  # noqa: E402
from torch.utils.data import Subset, WeightedRandomSampler  # noqa: E402

from loaders import Batched, Count, SizedCount, Squares, build, names, same, shown, threads  # noqa: E402

LINUX = sys.platform.startswith("linux")


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


def epochs(kind: Any, dataset: Any, num_workers: int, arguments: dict[str, Any], count: int = 2, **more: Any) -> list[Any]:
    torch.manual_seed(11)
    loader = build(kind, dataset, num_workers, arguments, **more)
    got = [list(loader) for _ in range(count)]
    return [*got, torch.rand(1)]  # and torch's own generator stands where torch leaves it


@pytest.mark.parametrize("dataset", [Squares(), Batched(), Subset(Squares(40), range(2, 25)), Subset(Batched(40), range(23))])
@pytest.mark.parametrize("arguments", MAP, ids=shown)
def test_gives_what_torch_gives_in_the_calling_thread(dataset: Any, arguments: dict[str, Any]) -> None:
    assert same(epochs(DataLoader, dataset, 0, arguments), epochs(TorchLoader, dataset, 0, arguments))


@pytest.mark.skipif(not LINUX, reason="torch's workers need fork to start fast")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("arguments", MAP, ids=shown)
def test_gives_what_torch_gives_with_as_many_workers(arguments: dict[str, Any], persistent: bool) -> None:
    options = {"multiprocessing_context": "fork", "persistent_workers": persistent}
    ours = epochs(DataLoader, Squares(), 2, arguments, **options)
    assert same(ours, epochs(TorchLoader, Squares(), 2, arguments, **options))


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("dataset", [Squares(), Batched(), Subset(Squares(40), range(2, 25))])
@pytest.mark.parametrize("arguments", MAP[:5] + MAP[9:14], ids=shown)  # those that draw no random numbers
def test_any_number_of_threads_keeps_the_order(dataset: Any, arguments: dict[str, Any], num_workers: int) -> None:
    for more in ({}, {"prefetch_factor": 1}, {"prefetch_factor": 7, "persistent_workers": True}):
        ours = epochs(DataLoader, dataset, num_workers, arguments, **more)
        assert same(ours[:2], epochs(TorchLoader, dataset, 0, arguments)[:2])


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}, {"batch_size": 23}], ids=shown
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


@pytest.mark.parametrize(("dataset", "arguments"), WRONG, ids=shown)
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
