"""How does a batch get from the data's device to the model's while the model works?

Three are on their way: one being prepared, one being copied, one that the model works on. Copies run on a stream of the
model's device and begin when the data's device is through with a batch, by an event; neither waits for the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from feedwater.torch import CudaSide, Event
from feedwater.train.places import Places
from feedwater.train.recipe import Tensors

DEPTH = 3


class Between(Protocol):
    """What is between two devices."""

    def prepare(self, make: Callable[[], Tensors]) -> tuple[Tensors, Event]:
        """Has the data's device make a batch."""

    def copy(self, batch: Tensors, made: Event) -> tuple[Tensors, Event]:
        """Has a batch copied to the model's device as soon as it is made."""

    def join(self, batch: Tensors, copied: Event) -> None:
        """Makes the model's device wait for a copy."""


class CudaBetween(CudaSide):
    """Two CUDA devices: a stream on each."""

    def __init__(self, places: Places) -> None:
        super().__init__(places.model)
        self.data = places.data
        self.work = torch.cuda.Stream(places.data)  # type: ignore[no-untyped-call]
        self.timed: list[tuple[Any, Any]] = []

    def prepare(self, make: Callable[[], Tensors]) -> tuple[Tensors, Event]:
        """Has the data's device make a batch, on a stream of its own."""
        with torch.cuda.device(self.data), torch.cuda.stream(self.work):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record(self.work)
            batch = make()
            end.record(self.work)
        self.timed.append((begin, end))
        return batch, end

    def copy(self, batch: Tensors, made: Event = ...) -> tuple[Tensors, Event]:  # type: ignore[assignment]
        """Has a batch copied as soon as it is made; its memory is kept until then."""
        self.stream.wait_event(made)  # type: ignore[arg-type]
        moved, copied = super().copy(batch)
        for tensor in batch.values():
            tensor.record_stream(self.stream)
        return moved, copied

    def busy_nanos(self) -> int:
        """How long the data's device worked, as far as it is through."""
        done = [pair for pair in self.timed if pair[1].query()]
        self.timed = [pair for pair in self.timed if pair not in done]
        return int(sum(begin.elapsed_time(end) for begin, end in done) * 1e6)


class Relay:
    """Batches that one device prepares and another trains on, in order."""

    def __init__(
        self,
        batches: Iterator[Tensors],
        prepare: Callable[[Tensors], Tensors],
        between: Between,
        state: Callable[[], Any],
        made: Callable[[], Any],
    ) -> None:
        self.batches, self.make, self.between, self.state, self.made = batches, prepare, between, state, made
        self.ahead: deque[tuple[Tensors, Event, Any, Any]] = deque()
        self.ended = False
        # The place after the batch that was handed over last.
        self.consumed: Any = state()
        # How that one was made.
        self.last_input: Any = None

    def __iter__(self) -> Iterator[Tensors]:
        return self

    def __next__(self) -> Tensors:
        self._fill(1)
        if not self.ahead:
            raise StopIteration
        batch, copied, self.consumed, self.last_input = self.ahead.popleft()
        self.between.join(batch, copied)
        # The model has this one; the others go on their way while it works.
        self._fill(DEPTH - 1)
        return batch

    def _fill(self, wanted: int) -> None:
        while len(self.ahead) < wanted and not self.ended:
            try:
                batch, made = self.between.prepare(lambda: self.make(next(self.batches)))
            except StopIteration:
                self.ended = True
                return
            moved, copied = self.between.copy(batch, made)
            self.ahead.append((moved, copied, self.state(), self.made()))
