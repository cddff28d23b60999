"""Does the ``DataLoader`` go on where it was, from a state of any step?"""

from __future__ import annotations

import io
import random
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from feedwater.dataloader import DataLoader  # noqa: E402

from loaders import Batched, Count, Rolling, Squares, Stateful, build, same, seeded, shown  # noqa: E402

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
@pytest.mark.parametrize(("dataset", "arguments"), STATES, ids=shown)
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
