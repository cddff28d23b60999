"""How busy is the model with each recipe, against a script as the seeds' users have it? One real step, two ways to feed it.

The model's step is the recipe's own, in PyTorch, on one core (`OMP_NUM_THREADS=1`); what feeds it may use the other. `before`
is a plain loop that loads on its own thread: librosa and the feature extractor, a tokenizer a text at a time, `numpy.load` with
noise and masks. `after` is `feedwater train RECIPE --engine torch` on the same data, with the same model and batch size. They
take turns; medians over the rounds.

    python bench/recipes.py [--rounds 2] [--steps 25] [--only lm,tts]

Busy is the share of the time in which the step did not wait for its batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECIPES = {
    "whisper": ["--model-size", "tiny", "--max-seconds", "5", "--batch-size", "8", "--gradient-checkpointing", "off"],
    "lm": ["--model-size", "tiny", "--length", "256", "--batch-size", "4", "--no-packing"],
    "cnn-lstm": ["--batch-size", "32", "--encoder-epochs", "0", "--noise", "0.01", "--time-masks", "2"],
    "tts": ["--model-size", "tiny", "--batch-size", "16", "--max-seconds", "5"],
}
DATA = {
    "whisper": ["morse", "--clips", "300", "--max-seconds", "5"],
    "lm": ["text", "--documents", "2000", "--words", "60..150"],
    "cnn-lstm": ["npy", "--samples", "600"],
    "tts": ["morse", "--clips", "300", "--max-seconds", "5"],
}


def batches(recipe: str, data: Path, run: Path, size: int) -> Iterator[Any]:
    """Batches made on this thread, as the seeds' scripts make them."""
    import numpy as np
    import torch

    from feedwater.pipeline import Batch

    random = np.random.default_rng(7)
    if recipe == "lm":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
        texts = [json.loads(line)["text"] for line in (data / "text.jsonl").read_text().splitlines()]
        while True:
            rows = [tokenizer.encode(str(random.choice(texts))).ids[:256] for _ in range(size)]
            ids = torch.zeros(size, max(map(len, rows)), dtype=torch.long)
            mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
            for at, row in enumerate(rows):
                ids[at, : len(row)] = labels[at, : len(row)] = torch.tensor(row)
                mask[at, : len(row)] = 1
            yield Batch({"input_ids": ids, "attention_mask": mask, "labels": labels})
    if recipe == "cnn-lstm":
        files = sorted(data.rglob("*.npy"))
        labels = sorted({file.parent.name for file in files})
        while True:
            rows = []
            chosen = [files[at] for at in random.integers(0, len(files), size)]
            for file in chosen:
                array = np.load(file).astype(np.float32)
                array += 0.01 * np.random.randn(*array.shape).astype(np.float32)
                for _ in range(2):
                    wide = int(0.05 * len(array) * random.random())
                    first = random.integers(0, max(len(array) - wide, 1))
                    array[first : first + wide] = 0
                array = (array - array.mean()) / max(array.std(), 1e-5)
                rows.append(torch.from_numpy(array))
            lengths = torch.tensor([len(row) for row in rows])
            features = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2)
            classes = torch.tensor([labels.index(file.parent.name) for file in chosen])
            yield Batch({"features": features, "lengths": lengths, "labels": classes})
    import librosa
    from tokenizers import Tokenizer
    from transformers import WhisperFeatureExtractor

    lines = [json.loads(line) for line in (data / "metadata.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["text"]]
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    extractor = WhisperFeatureExtractor(80, chunk_length=5)
    while True:
        chosen = [lines[at] for at in random.integers(0, len(lines), size)]
        sounds = [librosa.load(data / line["file_name"], sr=16_000)[0] for line in chosen]
        made = [extractor(sound, sampling_rate=16_000, return_tensors="pt").input_features[0] for sound in sounds]
        ids = [torch.tensor(tokenizer.encode(line["text"]).ids) for line in chosen]
        labels = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100)
        if recipe == "whisper":
            yield Batch({"input_features": torch.stack(made), "labels": labels})
        else:
            frames = torch.tensor([len(sound) // 160 for sound in sounds]).clamp(min=1)
            mel = torch.stack(made).transpose(1, 2)[:, : int(frames.max())]
            counts = torch.tensor([len(row) for row in ids])
            yield Batch({"mel": mel, "frames": frames, "letters": labels.clamp(min=0), "counts": counts})


def before(recipe: str, data: Path, run: Path, steps: int) -> dict[str, float]:
    """A plain loop, in this process."""
    import torch

    from feedwater import _core
    from feedwater.train import cnn_lstm, lm, tts, whisper
    from feedwater.train.settings import Settings

    flags = [recipe, "--data-dir", str(data), "--output-dir", str(run), *RECIPES[recipe]]
    settings = Settings(json.loads(_core.train_options(flags)))
    make = {"whisper": whisper.make, "lm": lm.make, "cnn-lstm": cnn_lstm.make, "tts": tts.make}[recipe]
    # The model that `after` has trained: the same sizes and letters.
    made = make(settings, max((run / "checkpoints").glob("step-*")))
    optimizer = torch.optim.AdamW([parameter for parameter in made.model.parameters() if parameter.requires_grad], 1e-4)
    assert isinstance(settings.batch_size, int)
    feed = batches(recipe, data, run, settings.batch_size)
    made.model.train()
    wait = 0.0
    began = time.perf_counter()
    for step in range(steps + 3):
        if step == 3:
            wait, began = 0.0, time.perf_counter()
        asked = time.perf_counter()
        batch = next(feed)
        wait += time.perf_counter() - asked
        loss, count = made.loss(made.model, batch)
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    wall = time.perf_counter() - began
    return {"busy": 1 - wait / wall, "steps_a_second": steps / wall}


def after(recipe: str, data: Path, run: Path, steps: int) -> dict[str, float]:
    """The command, on the same data; its first steps are not counted."""
    flags = ["--max-steps", steps + 3, "--eval-steps", 100_000, "--save-steps", 100_000, "--report-to", "none", "--json"]
    line = [sys.executable, "-m", "feedwater.train", recipe, "--data-dir", data, "--output-dir", run, *RECIPES[recipe], *flags]
    subprocess.run([str(word) for word in line], check=True, capture_output=True)
    lines = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    counted = [line for line in lines if "step" in line][3:]
    wall = sum(line["wall_nanos"] for line in counted)
    return {"busy": 1 - sum(line["wait_nanos"] for line in counted) / wall, "steps_a_second": len(counted) / wall * 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--only", default=",".join(RECIPES))
    parser.add_argument("--before", nargs=3, metavar=("RECIPE", "DATA", "RUN"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if asked.before:
        recipe, data, run = asked.before
        print(json.dumps(before(recipe, Path(data), Path(run), asked.steps)))
        return
    print(f"{'recipe':10} {'before':>22} {'after':>22}")
    with tempfile.TemporaryDirectory(prefix="feedwater-recipes-") as folder:
        for recipe in asked.only.split(","):
            data = Path(folder) / recipe
            command = [sys.executable, "-m", "feedwater", "generate", *DATA[recipe], "--out", str(data)]
            subprocess.run(command, check=True, capture_output=True)
            found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
            for number in range(asked.rounds):
                run = Path(folder) / f"{recipe}-run{number}"
                found["after"].append(after(recipe, data, run, asked.steps))
                line = [sys.executable, __file__, "--steps", str(asked.steps), "--before", recipe, str(data), str(run)]
                said = subprocess.run(line, check=True, capture_output=True, text=True).stdout
                found["before"].append(json.loads(said.splitlines()[-1]))

            def shown(which: str) -> str:
                busy, pace = (statistics.median(one[name] for one in found[which]) for name in ("busy", "steps_a_second"))
                return f"{100 * busy:5.1f} %, {pace:5.2f} steps/s"

            print(f"{recipe:10} {shown('before'):>22} {shown('after'):>22}", flush=True)


if __name__ == "__main__":
    main()
