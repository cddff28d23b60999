"""What does a training step take, native and with PyTorch? The same model, the same batches, in turns.

    cargo build --release --workspace --bin feedwater --example compute
    python bench/native.py [--rounds 3] [--steps 6]

Whisper tiny on clips of 12 s, batches of 8; and the quick start's CNN and LSTM with CTC, batches of 16. Both use all cores.
A step is forward, backward, clipping and AdamW; waiting for batches is left out on both sides. Medians over all rounds, the
first step of each left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "target" / "release"
sys.path.insert(0, str(ROOT / "python" / "tests"))


def native(program: str, *arguments: object) -> None:
    subprocess.run([BUILT / program, *map(str, arguments)], check=True, capture_output=True)


def native_steps(recipe: str, model: Path, data: Path, few: Path, run: Path, steps: int, batch: int) -> list[float]:
    native(
        "feedwater", "train", recipe, "--engine", "native", "--data-dir", data, "--eval-data", few, "--model", model, "--output-dir", run,
        "--max-steps", steps, "--batch-size", batch, "--json",
    )
    lines = map(json.loads, (run / "record.jsonl").read_text().splitlines())
    return [(line["wall_nanos"] - line["wait_nanos"]) / 1e9 for line in lines if "step" in line]


def torch_steps(model: torch.nn.Module, losses: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    took = []
    for loss_of in losses:
        began = time.perf_counter()
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        took.append(time.perf_counter() - began)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    import test_native as tests

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data, few = folder / "data", folder / "few"
        native("feedwater", "generate", "morse", "--out", data, "--clips", 400)
        native("feedwater", "generate", "morse", "--out", few, "--clips", 2, "--max-seconds", 3)
        took: dict[str, list[float]] = {}

        # The model that `feedwater train` makes is the one that both begin with.
        native(
            "feedwater", "train", "whisper", "--engine", "native", "--data-dir", data, "--eval-data", few, "--output-dir", folder / "w",
            "--max-seconds", 12, "--max-steps", 1, "--batch-size", 1,
        )
        native(
            "feedwater", "train", "cnn-lstm", "--engine", "native", "--data-dir", data, "--eval-data", few, "--output-dir", folder / "c",
            "--max-steps", 1, "--batch-size", 1,
        )
        whisper, cnn = (folder / name / "checkpoints" / "step-00000001" for name in "wc")
        native("examples/compute", "batches", whisper, data, folder / "w.safetensors", arguments.steps, 8)
        native("examples/compute", "batches", cnn, data, folder / "c.safetensors", arguments.steps, 16)
        config = WhisperConfig.from_pretrained(whisper)
        for round_number in range(arguments.rounds):
            run = folder / f"run{round_number}"
            steps = arguments.steps
            took.setdefault("whisper native", []).extend(native_steps("whisper", whisper, data, few, run / "w", steps, 8)[1:])
            batches = load_file(folder / "w.safetensors")
            model = WhisperForConditionalGeneration(config).train()

            def of_whisper() -> Any:
                for at in range(steps):
                    features, labels = batches[f"{at}.features"], batches[f"{at}.labels"].long()
                    yield lambda: model(input_features=features, labels=labels).loss

            took.setdefault("whisper torch", []).extend(torch_steps(model, of_whisper())[1:])
            took.setdefault("cnn-lstm native", []).extend(native_steps("cnn-lstm", cnn, data, few, run / "c", steps, 16)[1:])
            batches = load_file(folder / "c.safetensors")
            shapes = load_file(cnn / "model.safetensors")
            other = tests.CnnLstm(len(shapes["head.bias"]), len(shapes["conv1.bias"]), shapes["lstm.weight_hh_l0"].shape[1])

            def of_cnn() -> Any:
                for at in range(steps):
                    frames = batches[f"{at}.feature_lengths"].long()
                    labels = batches[f"{at}.labels"].long().clamp(min=0)
                    counts = batches[f"{at}.label_lengths"].long()
                    around = tests.around_the_tone(batches[f"{at}.features"], frames)

                    def loss() -> torch.Tensor:
                        logits, lengths = other(around, frames)
                        log = logits.log_softmax(2).transpose(0, 1)
                        return torch.nn.functional.ctc_loss(log, labels, lengths, counts, zero_infinity=True)

                    yield loss

            took.setdefault("cnn-lstm torch", []).extend(torch_steps(other, of_cnn())[1:])
    for recipe in ("whisper", "cnn-lstm"):
        ours, theirs = (statistics.median(took[f"{recipe} {who}"]) for who in ("native", "torch"))
        print(f"{recipe:9} native {ours * 1e3:7.0f} ms  torch {theirs * 1e3:7.0f} ms  ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
