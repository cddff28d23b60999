"""Datasets, samplers and loaders that the tests of the ``DataLoader`` share."""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import torch
from torch.utils.data import IterableDataset, Sampler, get_worker_info


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


def shown(value: object) -> str:
    """The name of a case: without addresses, so that it is the same in every process that runs tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def names(batch: list[Any]) -> list[str]:
    return [sample["name"] for sample in batch]


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
