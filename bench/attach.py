"""What does being observed cost a script? Its steps with the observer awake and at rest, in turns within one run.

    python bench/attach.py [--steps 240] [--feedwater target/release/feedwater]

The scripts are those of `python/tests/scripts`, unchanged, run by `feedwater profile`. A step is timed here, from one sleep
(or optimizer step) of the script to the next, so that the figure is not the observer's own. Every few steps the observer is
sent to rest or woken. Two runs of one script differ by far more than observing costs, so turns are compared with their
neighbours: the median of the differences, and its quartiles. `cpu` is the processor time that the process took more, over the
time of a step: other programs on the machine change it less than they change how long a step takes.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "python" / "tests" / "scripts"
# Before, the observer looks more often.
WARM_UP = 70
TURN = 6


def timed(out: str, script: str, arguments: list[str]) -> None:
    """Runs a script in this process; writes what its steps took, awake and at rest."""
    at: list[tuple[float, float]] = []
    sleep = time.sleep

    def step() -> None:
        at.append((time.perf_counter(), time.process_time()))
        run: Any = sys.modules["_feedwater_attach.hooks"].observing()
        if len(at) >= WARM_UP and (len(at) - WARM_UP) % TURN == 0:
            if (len(at) - WARM_UP) // TURN % 2:
                run.rest(sys.maxsize)
            else:
                run.wake(True)
        # It rests by itself where steps are short; not here.
        run._burst = -sys.maxsize

    def noted(seconds: float, /) -> None:
        sleep(seconds)
        step()

    # Before torch comes, and with it the observer, which looks at whoever calls it.
    if "compute" not in script:
        time.sleep = noted  # type: ignore[assignment]
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if "compute" in script:
        register_optimizer_step_post_hook(lambda *_: step())
    sys.argv = [script, *arguments]
    sys.path[0] = str(SCRIPTS)
    runpy.run_path(script, run_name="__main__")
    turns = [at[begin : begin + TURN + 1] for begin in range(WARM_UP, len(at) - TURN, TURN)]
    # The first step of a turn has some of both.
    Path(out).write_text(json.dumps([[(end - begin) / (TURN - 1) for begin, end in zip(turn[1], turn[-1])] for turn in turns]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--feedwater", default=str(Path(__file__).parents[1] / "target" / "release" / "feedwater"))
    parser.add_argument("--only", help="one script: whisper, text, npy or compute")
    arguments = parser.parse_args()
    steps = str(WARM_UP + arguments.steps)
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "whisper": ["whisper_like.py", folder, "--steps", steps, "--format", "ogg", "--seconds", "20"],
            "text": ["text_like.py", "--steps", steps],
            "npy": ["npy_like.py", folder, "--steps", steps],
            "compute": ["compute_bound.py", "--steps", steps, "--epochs", "1", "--width", "1024"],
        }
        print(f"{'script':10} {'at rest':>9} {'awake':>9} {'longer':>8}  {'quartiles':16} {'cpu':>7}  {'quartiles':16} its own count")
        for name, (script, *rest) in cases.items():
            if arguments.only not in (None, name):
                continue
            out, record = os.path.join(folder, "steps.json"), os.path.join(folder, "run.jsonl")
            command = [sys.executable, __file__, "--timed", out, str(SCRIPTS / script), *rest]
            command = [arguments.feedwater, "profile", "--record", record, "--", *command]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            turns = json.loads(Path(out).read_text())
            pairs = list(zip(turns[1::2], turns[2::2], turns[3::2]))
            step = statistics.median(wall for wall, _ in turns[1::2])
            columns = []
            for at in (0, 1):
                more = [(awake[at] - (before[at] + after[at]) / 2) / step for before, awake, after in pairs]
                low, middle, high = statistics.quantiles(more)
                columns.append(f"{middle:+7.2%}  {f'{low:+.2%} {high:+.2%}':16}")
            end = json.loads(Path(record).read_text().splitlines()[-1])["end"]
            print(
                f"{name:10} {step * 1e3:6.1f} ms {statistics.median(wall for wall, _ in turns[2::2]) * 1e3:6.1f} ms  "
                f"{' '.join(columns)} {end['overhead_nanos'] / end['wall_nanos']:.2%}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--timed"]:
        timed(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
