"""How do batches reach torch, and its device?

On the CPU they are the engine's memory, without a copy. On a CUDA device the engine fills pinned memory; copies run on a
stream of their own, so that a batch is on the device before the step asks for it, and an event says when its memory may be
filled again. Nothing here waits for the device, unless all `depth` buffers are still being copied.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import torch

from feedwater import _core
from feedwater.dataloader import DataLoader
from feedwater.pipeline import Batch, Loader, Pipeline, Taken, _Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DataLoader", "TorchLoader"]


class Event(Protocol):
    """When a copy is done."""

    def query(self) -> bool:
        """Whether it is."""

    def synchronize(self) -> None:
        """Waits for it."""


class Side(Protocol):
    """Where copies run beside the model."""

    def copy(self, batch: Batch[torch.Tensor]) -> tuple[Batch[torch.Tensor], Event]:
        """Begins to copy a batch to the device."""

    def join(self, batch: Batch[torch.Tensor], event: Event) -> None:
        """Makes what the model does from here on wait for a copy, on the device."""


class CudaSide:
    """A stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, batch: Batch[torch.Tensor]) -> tuple[Batch[torch.Tensor], Event]:
        """Begins to copy a batch to the device."""
        with torch.cuda.stream(self.stream):
            moved = batch.replaced(lambda tensor: tensor.to(self.device, non_blocking=True))
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self.stream)
        return moved, event

    def join(self, batch: Batch[torch.Tensor], event: Event) -> None:
        """Makes the current stream wait for a copy, and keeps the memory from the allocator until it is through."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)  # type: ignore[arg-type]
        for tensor in batch.values():
            tensor.record_stream(current)


class TorchLoader(Loader[torch.Tensor]):
    """Batches of torch tensors, on a device."""

    def __init__(
        self, pipeline: Pipeline, device: str | torch.device | None = None, *, depth: int = 3, side: Side | None = None
    ) -> None:
        if depth < 1:
            raise ValueError("a depth of 0 batches\nhint: 3 is usual: one in use, one on its way, one being filled")
        self.device = torch.device("cpu" if device is None else device)
        self.depth = depth
        if side is None and self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise RuntimeError(
                    f"`device` is `{self.device}`, and torch sees no CUDA device here\n"
                    "hint: `feedwater doctor` says what is missing; without a GPU: `.torch()`"
                )
            side = CudaSide(self.device)
        self._side = side
        super().__init__(pipeline, _to_torch)

    def _build(self) -> _core.Pipeline:
        pinned = self._side is not None and torch.cuda.is_available()
        return self.pipeline.build(buffers=_pinned if pinned else None)

    def _read(self, epoch: int) -> _Reading[torch.Tensor]:
        if self._side is not None:
            return _Ahead(self, epoch, self._side)
        if self.device.type != "cpu":
            return _Moved(self, epoch)
        return _Reading(self, epoch)

    def settings(self) -> dict[str, Any]:
        """How it is set up: `settings` of a record."""
        return {**super().settings(), "pinned": self._side is not None and torch.cuda.is_available()}

    def _arguments(self) -> dict[str, Any]:
        return {"device": str(self.device), "depth": self.depth}


def _to_torch(tensor: _core.Tensor) -> torch.Tensor:
    return torch.from_dlpack(tensor)  # type: ignore[attr-defined]


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class _Moved(_Reading[torch.Tensor]):
    """An epoch on a device that has no streams of ours: `mps`, `xpu`, `meta`."""

    def _take(self) -> Taken[torch.Tensor] | None:
        taken = super()._take()
        if taken is None:
            return None
        batch, state, made = taken
        assert isinstance(self.loader, TorchLoader)
        device = self.loader.device
        return batch.replaced(lambda tensor: tensor.to(device)), state, made


class _Ahead(_Reading[torch.Tensor]):
    """An epoch whose batches are copied to the device ahead of the step."""

    def __init__(self, loader: TorchLoader, epoch: int, side: Side) -> None:
        super().__init__(loader, epoch)
        self.side = side
        self.depth = loader.depth
        # On the device or on their way, in order.
        self.ahead: deque[tuple[Taken[torch.Tensor], Event]] = deque()
        # Memory that is being copied from, with the event after which it may be filled again.
        self.copied: deque[tuple[Event, Sequence[torch.Tensor]]] = deque()
        self.ended = False

    def __next__(self) -> Batch[torch.Tensor]:
        self._may_go_on()
        if not self.ahead:
            self._copy_next()
        if not self.ahead:
            self._end()
        taken, event = self.ahead.popleft()
        batch = self._hand_over(taken)
        self.side.join(batch, event)
        # What is ready goes on its way now, while the model works on this one.
        while len(self.ahead) < self.depth - 1 and not self.ended and self.loader._core.is_ready():
            self._copy_next()
        return batch

    def _copy_next(self) -> None:
        while self.copied and (len(self.copied) >= self.depth or self.copied[0][0].query()):
            event, _ = self.copied.popleft()
            event.synchronize()
        taken = None if self.ended else self._take()
        if taken is None:
            self.ended = True
            return
        batch, state, made = taken
        moved, event = self.side.copy(batch)
        self.copied.append((event, list(batch.values())))
        self.ahead.append(((moved, state, made), event))

    def _end(self) -> Any:
        while self.copied:
            self.copied.popleft()[0].synchronize()
        super()._end()

    def close(self) -> None:
        """Ends it before its end, when nothing is being copied any more."""
        while self.copied:
            self.copied.popleft()[0].synchronize()
        self.ahead.clear()
        super().close()
