"""What does `with fw.profile()` see, and what does it leave as it was?"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import feedwater as fw
from feedwater.torch import DataLoader as Threads

pytestmark = pytest.mark.alone


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tokenize(index)

    def tokenize(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.full((4,), float(index))


def train(loader: Any) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_of_torch_is_seen_as_it_stands(workers: int) -> None:
    loader = DataLoader(Slow(), batch_size=2, num_workers=workers)
    with fw.profile() as p:
        train(loader)
    diagnosis = p.diagnosis()
    assert diagnosis["bound"]["by"] == "input"
    assert "tokenize" in p.verdict()
    assert "<svg" in p.html()
    assert p.verdict() == repr(p)
    assert "iframe" in p._repr_html_()


def test_our_own_loaders_are_seen(morse: Path) -> None:
    loader = fw.open(morse).decode(16_000).log_mel(80).batch(2).torch()
    with fw.profile() as p:
        for _ in range(2):
            for _ in loader:
                time.sleep(0.03)
    steps = [json.loads(line) for line in p.record.read_text().splitlines()]
    steps = [step for step in steps if "step" in step]
    assert [step.get("epoch", 0) for step in steps] == [0] * len(loader) + [1] * len(loader)
    assert all("work_nanos" in step["input"] and step["compute_nanos"] >= 30_000_000 for step in steps)


def test_the_drop_in_is_seen() -> None:
    with fw.profile() as p:
        train(Threads(Slow(), batch_size=2, num_workers=1))
    assert p.diagnosis()["bound"]["by"] == "input"
    assert '"loader":"feedwater.torch.DataLoader"' in p.record.read_text()


def batches() -> Iterator[dict[str, Any]]:
    for _ in range(30):
        time.sleep(0.001)
        yield {"x": torch.zeros(3, 2)}


def test_any_other_loader_by_steps() -> None:
    with fw.profile() as p:
        for _ in p.steps(batches()):
            with p.part("copy"):
                sum(range(20_000))
            deadline = time.perf_counter() + 0.04
            while time.perf_counter() < deadline:
                pass
    steps = [line for line in p.record.read_text().splitlines() if '"step"' in line]
    assert len(steps) == 30
    assert all('"rows":3' in line and '"copy_nanos"' in line for line in steps)
    assert p.diagnosis()["bound"]["by"] == "compute"


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = dict(os.environ)
    random.seed(3)
    torch.manual_seed(3)
    with fw.profile(tmp_path / "run.jsonl") as p:
        train(DataLoader(Slow(), batch_size=2))
        with fw.profile() as inner:
            assert inner.record == p.record
    assert dict(os.environ) == before
    drawn = random.random()
    random.seed(3)
    assert random.random() == drawn
    written = (tmp_path / "run.jsonl").read_text()
    train(DataLoader(Slow(), batch_size=30))
    assert (tmp_path / "run.jsonl").read_text() == written
    with fw.profile() as again:
        train(DataLoader(Slow(), batch_size=2))
    assert again.record != p.record
    assert again.diagnosis()["bound"]["by"] == "input"


def test_a_loop_that_fails_keeps_what_was_seen() -> None:
    def fails() -> Iterator[torch.Tensor]:
        for at, batch in enumerate(DataLoader(Slow(), batch_size=2)):
            if at == 25:
                raise KeyError("of the script's own")
            yield batch

    p = fw.profile()
    with pytest.raises(KeyError, match="of the script's own"), p:
        train(fails())
    assert p.diagnosis()["bound"]["by"] == "input"


def test_nothing_to_see_is_said(tmp_path: Path) -> None:
    with fw.profile() as p:
        pass
    with pytest.raises(ValueError, match="p.steps"):
        p.verdict()
    assert "nothing was recorded" in repr(p)
    with pytest.raises(FileNotFoundError), fw.profile(tmp_path / "no" / "such" / "folder.jsonl"):
        pass
    with pytest.raises(ValueError, match="one of copy, sync, optimizer"), fw.profile() as p, p.part("model"):
        pass
