"""The second epoch: features read from a cache, Feedwater's and its peers', on the same files.

    python bench/cached.py --feedwater target/release/feedwater-bench [--data DIR] [--repeats 3]

The data is a folder of WAV files (bench/make_data.py makes one). Each row is a process of its own that reads all features once, so
that memory was touched before, and then, counted, 25 times, in batches of 16 of 80 × 3000, in another random order each time, from a
cache that an earlier process wrote and that the system has in memory; `ram` is Feedwater's cache of this name, which the first,
uncounted epoch fills. One thread each, unless it says otherwise. All take turns; figures are medians. What building took and what
lies on the disk stands beside them, and `epochs to pay` is after how many epochs building has paid, in CPU time, against making
features anew with the same program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
# Epochs that are read.
EPOCHS = 25


def ran(command: list[str]) -> dict[str, Any]:
    """The JSON line that a process prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=BENCH, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--feedwater", type=Path, required=True, help="the program feedwater-bench")
    parser.add_argument("--data", type=Path, default=BENCH.parent / "target/bench-data/wav16k")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    data, program = ["--data", str(asked.data.resolve())], str(asked.feedwater.resolve())
    epochs = ["--epochs", str(EPOCHS), "--warm", "1"]
    with tempfile.TemporaryDirectory(prefix="feedwater-cached-") as folder:

        def peer(module: str, *flags: str) -> list[str]:
            return [sys.executable, "-m", f"peers.{module}", *data, *flags]

        def ours(name: str, *flags: str, ram: bool = False) -> tuple[str, list[str], list[str], Path]:
            kept = Path(folder) / name.replace(" ", "-").replace(",", "")
            threads = [] if "--threads" in flags else ["--threads", "1"]
            line = [program, "audio", *data, "--shuffle", "--cache", "ram" if ram else str(kept), *threads, *flags]
            return name, line, line, kept

        def theirs(name: str, module: str, own: str, *flags: str) -> tuple[str, list[str], list[str], Path]:
            kept = Path(folder) / own
            kept.mkdir(exist_ok=True)
            line = peer(module, "--cache", str(kept), *flags)
            return name, [*line, "--build", "yes"], line, kept

        half, halves = ("--cache-dtype", "f16"), ("--output", "f16")
        rows = [
            ours("Feedwater f32"),
            ours("Feedwater f32, 2 threads", "--threads", "2"),
            ours("Feedwater f16", *half),
            ours("Feedwater f16 batches", *half, *halves),
            ours("Feedwater ram f32", ram=True),
            ours("Feedwater ram f16", *half, ram=True),
            ours("Feedwater ram f16 batches", *half, *halves, ram=True),
            theirs("datasets, DataLoader", "cached_datasets", "datasets", "--read", "loader"),
            theirs("datasets, rows", "cached_datasets", "datasets", "--read", "rows"),
            theirs("datasets, iter", "cached_datasets", "datasets", "--read", "iter"),
            theirs("datasets, by hand", "cached_datasets", "datasets", "--read", "column"),
            theirs("datasets, nothing read", "cached_datasets", "datasets", "--read", "nothing"),
            theirs("datasets f16, rows", "cached_datasets", "datasets-f16", "--read", "rows", "--dtype", "float16"),
            theirs("datasets f16, iter", "cached_datasets", "datasets-f16", "--read", "iter", "--dtype", "float16"),
            theirs("lhotse, numpy files", "cached_lhotse", "lhotse-numpy", "--storage", "numpy"),
            theirs("lhotse, lilcom", "cached_lhotse", "lhotse-lilcom", "--storage", "lilcom"),
        ]
        built: dict[str, dict[str, Any]] = {}
        for name, build, _, kept in rows:
            same = next((line for other, line in built.items() if line["kept"] == kept), None)
            built[name] = same or {**ran(build), "kept": kept}
        anew = {"Feedwater": [program, "audio", *data], "datasets": peer("torch_audio", "--mel", "hand"), "lhotse": peer("lhotse_audio")}
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in [*(row[0] for row in rows), *anew]}
        for _ in range(asked.repeats):
            for name, _, read, _ in rows:
                found[name].append(ran([*read, *epochs]))
            for name, line in anew.items():
                found[name].append(ran(line))

        clips = int(found["Feedwater"][0]["clips"])

        def middle(name: str, key: str) -> float:
            """Of one epoch."""
            return statistics.median(float(line[key]) / int(line["clips"]) * clips for line in found[name])

        print(f"{clips} clips; without a cache, CPU-s per 1000 samples: ", end="")
        print(", ".join(f"{name} {1000 * middle(name, 'cpu_seconds') / clips:.2f}" for name in anew))
        heads = ("samples/s", "per CPU-s", "CPU-s per 1000", "MB on disk", "build s", "build CPU-s", "epochs to pay")
        print(f"{'':28}" + "".join(f"{head:>16}" for head in heads))
        for name, _, _, kept in rows:
            cpu, wall = middle(name, "cpu_seconds"), middle(name, "wall_seconds")
            size = sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()) / 1e6
            plain = middle(next(other for other in anew if name.startswith(other)), "cpu_seconds")
            pays = f"{(built[name]['cpu_seconds'] - plain) / (plain - cpu) + 1:.1f}" if plain > cpu else "never"
            cells = [f"{clips / wall:.0f}", f"{clips / cpu:.0f}", f"{1000 * cpu / clips:.3f}", f"{size:.1f}"]
            cells += [f"{built[name]['wall_seconds']:.1f}", f"{built[name]['cpu_seconds']:.1f}", pays]
            print(f"{name:28}" + "".join(f"{cell:>16}" for cell in cells))
        rate = {name: clips / middle(name, "cpu_seconds") for name, _, _, _ in rows}
        print("by hand: rows copied out of the Arrow column into one batch that is used again; no function of datasets reads so")
        print("nothing read: a number is written into every place of three batches by turns, and that is all")
        for name in (name for name in rate if name.startswith("Feedwater")):
            others = (other for other in rate if not other.startswith("Feedwater") and "nothing" not in other)
            print(f"{name}, samples per CPU-second: " + ", ".join(f"{rate[name] / rate[other]:.1f} × {other}" for other in others))


if __name__ == "__main__":
    main()
