"""What does the two-line change do to an accelerator? Scripts as the seeds' users have them, before and after, in one run.

Three workloads, each with a pretended accelerator that is busy for a given time a step and uses no core:

* `whisper`  WAV -> librosa -> WhisperFeatureExtractor, batches of 8, 60 ms a step
* `text`     a tokenizer called on the main thread, batch 1, 50 ms a step
* `npy`      `.npy` with noise and two masks, batches of 64, 50 ms a step

and of each: the script as it is, the usual fix (worker processes), the drop-in `feedwater.torch.DataLoader` where there is a
Dataset, and Feedwater's own pipeline. They take turns; medians over the rounds.

    python bench/busy.py --data target/bench-data [--steps 150] [--rounds 3] [--only whisper]

Busy is the time that the accelerator worked over the time that passed, from the first batch asked for after the warm-up.
`start` is how long the first batch took.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

WARM_UP = 8
SECONDS = {"whisper": 0.060, "text": 0.050, "npy": 0.050}


class Clips(torch.utils.data.Dataset):
    """What a user of Whisper writes: librosa and the feature extractor, a clip at a time."""

    def __init__(self, folder: Path) -> None:
        from transformers import WhisperFeatureExtractor

        self.files = sorted(folder.glob("*.wav"))
        self.extractor = WhisperFeatureExtractor(feature_size=80)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        import librosa

        sound, _ = librosa.load(self.files[index], sr=16_000)
        features = self.extractor(sound, sampling_rate=16_000, return_tensors="pt")
        return features.input_features[0]


class Arrays(torch.utils.data.Dataset):
    """What seed 004's users write: load, noise, two masks."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        array = np.load(self.files[index])
        array = array + np.random.randn(*array.shape).astype(np.float32) * 0.1
        for _ in range(2):
            width = np.random.randint(0, max(len(array) // 20, 1))
            start = np.random.randint(0, len(array) - width + 1)
            array[start : start + width] = 0
        return torch.from_numpy(array)


class Texts(torch.utils.data.Dataset):
    """Documents, tokenized one by one."""

    def __init__(self, data: Path) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(next(data.rglob("tokenizer.json"))))
        source = next(data.rglob("*.jsonl"))
        self.texts = [json.loads(line)["text"] for line in source.open(encoding="utf-8")]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.tokenizer.encode(self.texts[index]).ids)


def padded(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def loaders(data: Path, workload: str) -> dict[str, Callable[[], Iterable[Any]]]:
    """How the batches of a workload are made, by the name of the way."""
    import feedwater as fw
    import feedwater.torch

    Torch, Ours = torch.utils.data.DataLoader, feedwater.torch.DataLoader
    if workload == "whisper":
        clips = Clips(data / "wav16k")
        return {
            "as it is (workers 0)": lambda: Torch(clips, batch_size=8, shuffle=True),
            "their fix (workers 2)": lambda: Torch(clips, 8, shuffle=True, num_workers=2, persistent_workers=True),
            "drop-in DataLoader": lambda: Ours(clips, 8, shuffle=True, num_workers=2, persistent_workers=True),
            "fw pipeline": lambda: fw.open(data / "wav16k").decode(16_000).log_mel(80).batch(8).torch(),
        }
    if workload == "npy":
        arrays = Arrays(data / "npy")
        pipeline = fw.npy(data / "npy", batch_size=64, noise=0.1, masks=2)
        return {
            "as it is (workers 0)": lambda: Torch(arrays, 64, shuffle=True, collate_fn=padded),
            "their fix (workers 2)": lambda: Torch(
                arrays, 64, shuffle=True, collate_fn=padded, num_workers=2, persistent_workers=True
            ),
            "drop-in DataLoader": lambda: Ours(
                arrays, 64, shuffle=True, collate_fn=padded, num_workers=2, persistent_workers=True
            ),
            "fw pipeline": lambda: pipeline.torch(),
        }
    texts = Texts(data / "text")
    source, tokenizer = next((data / "text").rglob("*.jsonl")), next((data / "text").rglob("tokenizer.json"))
    return {
        "as it is (main thread)": lambda: Torch(texts, batch_size=1, shuffle=True),
        "their fix (workers 2)": lambda: Torch(texts, 1, shuffle=True, num_workers=2, persistent_workers=True),
        "drop-in DataLoader": lambda: Ours(texts, 1, shuffle=True, num_workers=2, persistent_workers=True),
        "fw pipeline": lambda: fw.open(source).tokenize(tokenizer).batch(1).torch(),
    }


def forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def run(make: Callable[[], Iterable[Any]], seconds: float, steps: int) -> dict[str, float]:
    """So many steps against the pretended accelerator."""
    began = time.perf_counter()
    batches = forever(make())
    next(batches)
    start = time.perf_counter() - began
    time.sleep(seconds)
    for _ in range(WARM_UP):
        next(batches)
        time.sleep(seconds)
    walls, busy = [], 0.0
    asked = time.perf_counter()
    for _ in range(steps):
        next(batches)
        got = time.perf_counter()
        time.sleep(seconds)
        done = time.perf_counter()
        busy += done - got
        walls.append(done - asked)
        asked = done
    del batches
    walls.sort()
    mean = statistics.fmean(walls)
    return {
        "busy_percent": 100 * busy / sum(walls),
        "steps_per_second": 1 / mean,
        "p50_ms": 1e3 * walls[len(walls) // 2],
        "p99_ms": 1e3 * walls[min(int(len(walls) * 0.99), len(walls) - 1)],
        "variation_percent": 100 * statistics.pstdev(walls) / mean,
        "start_ms": 1e3 * start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=sorted(SECONDS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for workload in [args.only] if args.only else ["whisper", "text", "npy"]:
        ways = loaders(args.data, workload)
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for turn, name in itertools.product(range(args.rounds), ways):
            print(f"{workload}: {name}, round {turn + 1} of {args.rounds}", file=sys.stderr)
            rounds[name].append(run(ways[name], SECONDS[workload], args.steps))
        results[workload] = {
            name: {key: statistics.median(one[key] for one in all_rounds) for key in all_rounds[0]}
            for name, all_rounds in rounds.items()
        }
        print(f"\n{workload}: {1e3 * SECONDS[workload]:.0f} ms a step, {args.steps} steps, {args.rounds} rounds, medians")
        print(f"{'':24}{'busy':>9}{'steps/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'variation':>11}{'start ms':>10}")
        for name, one in results[workload].items():
            print(
                f"{name:24}{one['busy_percent']:>7.1f} %{one['steps_per_second']:>9.2f}{one['p50_ms']:>9.1f}"
                f"{one['p99_ms']:>9.1f}{one['variation_percent']:>9.1f} %{one['start_ms']:>10.0f}"
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
