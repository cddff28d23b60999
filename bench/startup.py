"""How long until the first batch of a million paths, and in how much memory? Torch with 2 workers, forked and spawned, beside
Feedwater.

    python bench/startup.py --data target/bench-data

Each way runs in a process of its own. The clock starts when the list of paths is there (torch) or the file that has it is not
yet read (Feedwater, whose figure has the reading in it), and stops at the first batch. Memory is the sum of the proportional
memory (PSS) of the process and its children at that moment, less that of the same process before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BATCH = 16
WAYS = ["torch, 2 workers, fork", "torch, 2 workers, spawn", "feedwater"]


def pss_bytes() -> int:
    """Proportional memory of this process and all below it."""
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        try:
            children = Path(f"/proc/{process}/task").iterdir()
            left += [int(child) for task in children for child in (task / "children").read_text().split()]
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (FileNotFoundError, PermissionError):
            continue
    return total


def one(way: str, data: Path) -> dict[str, float]:
    import torch

    paths = data / "paths_1m.txt"
    if way == "feedwater":
        import feedwater as fw

        before = pss_bytes()
        began = time.perf_counter()
        loader: Any = fw.open(paths).decode(16_000).log_mel(80).batch(BATCH).torch()
        reading = iter(loader)
    else:
        from busy import Clips

        clips = Clips(data / "wav16k")
        before = pss_bytes()
        clips.files = [data / line for line in paths.read_text().splitlines()]
        context = way.split(", ")[-1]
        began = time.perf_counter()
        loader = torch.utils.data.DataLoader(
            clips, BATCH, shuffle=True, num_workers=2, multiprocessing_context=context
        )
        reading = iter(loader)
    next(reading)
    took = time.perf_counter() - began
    return {"first_batch_seconds": took, "memory_mb": (pss_bytes() - before) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(one(args.way, args.data.resolve())))
        return
    print(f"{'':26}{'first batch s':>15}{'memory MB':>12}")
    for way in WAYS:
        line = [sys.executable, __file__, "--data", str(args.data), "--way", way]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{way:26}  failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        print(f"{way:26}{figures['first_batch_seconds']:>15.2f}{figures['memory_mb']:>12.0f}")


if __name__ == "__main__":
    main()
