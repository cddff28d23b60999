"""Does it train the same in several processes, and go on when one dies? Started as people start it, on gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conftest import run
from feedwater.train.__main__ import main

FLAGS = ["lm", "--length", "32", "--max-steps", "12", "--warmup-steps", "2", "--save-steps", "4", "--eval-steps", "6"]
FLAGS += ["--learning-rate", "1e-3", "--report-to", "none", "--lr-scheduler-type", "constant"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "data"
    made = run("-m", "feedwater", "generate", "text", "--documents", "120", "--words", "10..40", "--out", folder)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all others are to be the same as."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main([*FLAGS, "--data-dir", str(texts), "--output-dir", str(out), "--batch-size", "8", "--json"]) == 0
    return out


def started(launcher: list[str], *flags: object, **more: str) -> subprocess.Popen[str]:
    """Two processes of this Python."""
    line = [sys.executable, "-m", *launcher, "-m", "feedwater.train", *map(str, flags)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, said
    return said


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Its launcher for several GPUs is torchrun; without any, our processes take the CPU.
ACCELERATE = ["accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
ACCELERATE += ["--dynamo_backend", "no", "--main_process_port", "0"]


def losses(out: Path) -> list[float]:
    lines = map(json.loads, (out / "record.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "step" in line]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / "step-00000012" / "model.safetensors")


def alike(out: Path, alone: Path) -> None:
    assert losses(out) == pytest.approx(losses(alone), rel=1e-4)
    assert losses(alone)[-1] < 0.95 * losses(alone)[0]
    one, other = weights(out), weights(alone)
    assert one.keys() == other.keys()
    for name in one:
        assert torch.allclose(one[name], other[name], atol=2e-3), name


@pytest.mark.parametrize(
    ("launcher", "flags"),
    [
        (TORCHRUN, []),
        (TORCHRUN, ["--strategy", "fsdp"]),
        ([*ACCELERATE, "--multi_gpu"], []),
        ([*ACCELERATE, "--use_fsdp", "--fsdp_version", "2"], []),
    ],
    ids=["torchrun-ddp", "torchrun-fsdp", "accelerate-ddp", "accelerate-fsdp"],
)
def test_two_processes_train_as_one(
    texts: Path, alone: Path, tmp_path: Path, launcher: list[str], flags: list[str], request: pytest.FixtureRequest
) -> None:
    out = tmp_path / "run"
    said = ended(started(launcher, *FLAGS, *flags, "--data-dir", texts, "--output-dir", out, "--batch-size", 4))
    assert "in 2 processes" in said and f"2 processes, {request.node.callspec.id.split('-')[1]}" in said
    alike(out, alone)
    # One that was begun by two goes on with one, from the middle, and the other way round.
    (out / "checkpoints" / "step-00000012").rename(tmp_path / "whole")
    assert main([*FLAGS, "--data-dir", str(texts), "--output-dir", str(out), "--batch-size", "8", "--resume", "--json"]) == 0
    alike(out, alone)


def children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[1]) == parent:
            found.append(int(folder.name))
    return found


def step_of(out: Path) -> int:
    try:
        lines = [json.loads(line) for line in (out / "record.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return -1
    return max((line["step"] for line in lines if "step" in line), default=-1)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process to kill in /proc")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_process_that_is_killed_costs_nothing(texts: Path, alone: Path, tmp_path: Path, strategy: str) -> None:
    out = tmp_path / "run"
    launcher = [*TORCHRUN, "--max-restarts", "2"]
    flags: list[Any] = [*FLAGS, "--data-dir", texts, "--output-dir", out, "--batch-size", 4, "--strategy", strategy]
    process = started(launcher, *flags)
    deadline = time.monotonic() + 200
    while not (out / "checkpoints" / "step-00000004").exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.01)
    workers = children(process.pid)
    assert len(workers) == 2, workers
    os.kill(max(workers), signal.SIGKILL)
    said = ended(process)
    assert "resumed   after step" in said
    alike(out, alone)
