"""How batches reach a device: the order of calls, with a device that is pretended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import feedwater as fw
import pytest
import torch
from feedwater.torch import CudaSide, TorchLoader


class FakeEvent:
    def __init__(self, log: list[str], number: int) -> None:
        self.log, self.number, self.done = log, number, False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.log.append(f"synchronize {self.number}")
        self.done = True


class FakeSide:
    """A device that copies when it is told to, and writes down who asked for what."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events: list[FakeEvent] = []

    def copy(self, batch: Any) -> Any:
        number = len(self.events)
        self.log.append(f"copy {number}")
        self.events.append(FakeEvent(self.log, number))
        return batch.replaced(torch.clone), self.events[-1]

    def join(self, batch: Any, event: Any) -> None:
        self.log.append(f"join {event.number}")


def wait_until_made(loader: TorchLoader, samples: int) -> None:
    while loader.report()["stages"][-1]["items"] < samples:
        time.sleep(0.01)


def test_the_next_batches_are_copied_while_the_model_works(arrays: Path) -> None:
    side = FakeSide()
    loader = TorchLoader(fw.npy(arrays, batch_size=5).prefetch(6), device="cpu", depth=3, side=side)
    reading = iter(loader)
    next(reading)
    # Nothing was there when it was asked for; what is ready by now goes on its way with the next question.
    assert side.log[:2] == ["copy 0", "join 0"]
    for event in side.events:
        event.done = True
    wait_until_made(loader, 30)
    next(reading)
    ahead = len(side.events) - 2
    assert ahead >= 1, side.log
    assert ahead <= loader.depth - 1
    # A batch is joined in the order of its copies, and nobody waited for a device that was done.
    joined = [line for line in side.log if line.startswith("join")]
    assert joined == ["join 0", "join 1"]


def test_no_more_than_depth_buffers_are_being_copied_from(arrays: Path) -> None:
    side = FakeSide()
    loader = TorchLoader(fw.npy(arrays, batch_size=3), device="cpu", depth=3, side=side)
    for number, _ in enumerate(loader):
        unfinished = sum(not event.done for event in side.events)
        assert unfinished <= loader.depth, side.log
    assert number == 9
    # A device that is never done is waited for, one buffer at a time, the oldest first.
    waited = [line for line in side.log if line.startswith("synchronize")]
    assert waited == [f"synchronize {number}" for number in range(10)]


def test_batches_are_the_same_and_the_state_is_that_of_the_step(arrays: Path) -> None:
    pipeline = fw.npy(arrays, batch_size=4, noise=0.1, masks=2)
    plain = pipeline.torch()
    ahead = TorchLoader(pipeline, device="cpu", side=FakeSide())
    for one, two in zip(plain, ahead, strict=True):
        assert one["keys"] == two["keys"]
        assert torch.equal(one["input_features"], two["input_features"])
        # What was copied ahead is not consumed.
        assert plain.state_dict() == ahead.state_dict()
        assert ahead.steps_consumed == one["step"] + 1


def test_leaving_early_waits_for_the_copies(arrays: Path) -> None:
    side = FakeSide()
    loader = TorchLoader(fw.npy(arrays, batch_size=3), device="cpu", side=side)
    for _ in loader:
        break
    assert all(event.done for event in side.events)


def test_cuda_calls_in_their_order(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Stream:
        def __init__(self, device: Any = None) -> None:
            log.append(f"Stream({device})")

        def wait_event(self, event: Any) -> None:
            log.append("wait_event")

        def __enter__(self) -> None:
            log.append("stream begins")

        def __exit__(self, *_: Any) -> None:
            log.append("stream ends")

    class Event:
        def record(self, stream: Any) -> None:
            assert isinstance(stream, Stream)
            log.append("record")

    class Tensor:
        def to(self, device: Any, non_blocking: bool = False) -> Tensor:
            log.append(f"to {device} non_blocking={non_blocking}")
            return self

        def record_stream(self, stream: Any) -> None:
            assert stream is current
            log.append("record_stream")

    current = Stream("current")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    log.clear()
    side = CudaSide(torch.device("cuda", 0))
    moved, event = side.copy(fw.Batch({"input_features": Tensor()}))  # type: ignore[arg-type]
    side.join(moved, event)
    assert log == [
        "Stream(cuda:0)",
        "stream begins",
        "to cuda:0 non_blocking=True",
        "record",
        "stream ends",
        "wait_event",
        "record_stream",
    ]


def test_a_device_without_streams_of_ours(arrays: Path) -> None:
    for batch in fw.npy(arrays, batch_size=4).torch(device="meta"):
        assert batch["input_features"].device.type == "meta"


def test_a_depth_of_nothing_is_refused(arrays: Path) -> None:
    with pytest.raises(ValueError, match="a depth of 0"):
        fw.npy(arrays).torch(depth=0)
