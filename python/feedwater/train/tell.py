"""What does the user see, and what is written down? Lines on stderr, a record for `feedwater report`, curves for others.

Nothing here waits for the device: what a step gives is copied to the host beside the work, and looked at when the step's
events have passed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from feedwater import _core
from feedwater.attach.record import Clock, Mark, Span, Writer, host, share_out
from feedwater.train.recipe import Score
from feedwater.train.settings import Settings, Wrong

_EVERY_SECONDS = 10.0
# Steps that may lie between what is done and what is told of it.
_MOST_BEHIND = 8


@dataclass
class Took:
    """A step, as marks; its numbers are on their way to the host."""

    number: int
    epoch: int
    begin: Mark
    spans: list[Span] = field(default_factory=list)
    end: Mark | None = None
    rows: int = 0
    rate: float = 0.0
    # The mean loss and the norm of the gradient.
    numbers: torch.Tensor | None = None
    # Whether losses are scaled, so that gradients may overflow and be skipped.
    scaled: bool = False
    input: dict[str, Any] | None = None


class Teller:
    """Tells what happens, and writes it down. In a group, only the first process' does."""

    def __init__(self, settings: Settings, *, first: bool, world: int = 1) -> None:
        self.settings, self.first, self.world = settings, first, world
        self.speaks = first and not settings.json
        self.folder = settings.output_dir
        self.clock = Clock()
        self.writer: Writer | None = None
        self.sinks: list[Sink] = []
        self.first_step = self.steps = 0
        self.wall = self.wait = self.rows = 0
        self.began = time.perf_counter()
        self.loss = float("nan")
        self._waiting: deque[Took] = deque()
        self._shown = 0.0
        self._terminal = sys.stderr.isatty()

    def say(self, line: str) -> None:
        """A line for the user."""
        if self.speaks:
            print(("\r\x1b[K" if self._terminal else "") + line, file=sys.stderr, flush=True)

    def warn(self, line: str) -> None:
        """A line that nobody should miss."""
        if self.first:
            print(("\r\x1b[K" if self._terminal else "") + f"warning: {line}", file=sys.stderr, flush=True)

    def start(self, steps: int, step: int, run: dict[str, Any], device: torch.device) -> None:
        """The run begins, or goes on after `step`."""
        self.steps, self.first_step = steps, step
        if device.type == "cuda":
            self.clock.use_events(torch.cuda.Event, torch.cuda.is_current_stream_capturing)
        if not self.first:
            self.began = time.perf_counter()
            return
        # Without `record.jsonl` a run is worth as much: what cannot be written is told once.
        path = self.folder / "record.jsonl"
        before = list(_before(path, step))
        self.writer = Writer(str(path), lambda: self.warn(f"`{path}` cannot be written: the run goes on without"))
        about: dict[str, Any] = {"name": f"train {self.settings.recipe}", "writer": f"feedwater {_core.__version__}"}
        about |= {"started_unix_seconds": int(time.time()), "clock": self.clock.name, "planned_steps": steps}
        self.writer.line({"record": "feedwater", "version": 1, "run": {**about, "host": host(), **run}})
        for line in before:
            self.writer.line(line)
        self.sinks = [sink for name in self.settings.report_to if (sink := _sink(name, self.settings, self.say))]
        # What curves are drawn with takes seconds to import, which are not the run's.
        self.began = time.perf_counter()

    # Steps

    def asked(self, number: int, epoch: int) -> Took:
        """A step begins: its first batch is asked for."""
        return Took(number, epoch, self.clock.mark())

    def part(self, took: Took, kind: str, begin: Mark) -> Mark:
        """A part of a step has ended that began then."""
        end = self.clock.mark()
        took.spans.append((kind, begin, end))
        return end

    def took(self, took: Took) -> None:
        """A step has ended."""
        took.end = self.clock.mark()
        self._waiting.append(took)
        self._drain(_MOST_BEHIND)

    def settle(self) -> None:
        """Waits for what is on its way: before a checkpoint, an evaluation, the end."""
        if self._waiting and self.clock.name != "host":
            torch.cuda.synchronize()
        self._drain(0)
        # A run that is killed has all steps up to its last checkpoint.
        if self.writer is not None:
            self.writer.flush()

    def _drain(self, most: int) -> None:
        while self._waiting:
            took = self._waiting[0]
            assert took.end is not None
            marks = [took.end, *(mark for _, begin, end in took.spans for mark in (begin, end))]
            passed = self.clock.passed([took.begin, *marks])
            if not passed and len(self._waiting) <= most:
                return
            self._waiting.popleft()
            if not passed:
                took.end[1].synchronize()
            self._write(took, marks)
            self.clock.release({id(mark): mark for mark in [took.begin, *marks]}.values())

    def _write(self, took: Took, marks: list[Mark]) -> None:
        wall, *offsets = self.clock.offsets(took.begin, marks, passed=True)
        pairs = zip(offsets[::2], offsets[1::2], strict=True)
        parts = share_out(wall, [(kind, *pair) for (kind, _, _), pair in zip(took.spans, pairs, strict=True)])
        self.loss, norm = (float(number) for number in took.numbers) if took.numbers is not None else (0.0, 0.0)
        self.wall, self.wait, self.rows = self.wall + wall, self.wait + parts["wait"], self.rows + took.rows
        for what, number in (("loss", self.loss), ("gradient's norm", 0.0 if took.scaled else norm)):
            if abs(number) < float("inf") or (took.scaled and what == "loss" and abs(number) == float("inf")):
                continue
            raise Wrong(
                f"the {what} of step {took.number + 1} is {number}",
                "a smaller --learning-rate, more --warmup-steps; --resume goes on from the last checkpoint",
            )
        line: dict[str, Any] = {"step": took.number, "wall_nanos": wall, "epoch": took.epoch}
        line |= {f"{kind}_nanos": nanos for kind, nanos in parts.items() if nanos or kind == "wait"}
        line |= {"rows": took.rows, "loss": self.loss}
        if took.input is not None:
            line["input"] = took.input
        if self.writer is not None:
            self.writer.line(line)
        for sink in self.sinks:
            sink.log(took.number + 1, {"loss": self.loss, "learning_rate": took.rate, "grad_norm": norm})
        self._progress(took.number + 1)

    def _progress(self, step: int) -> None:
        now = time.perf_counter()
        if not self.speaks or (now - self._shown < (0.5 if self._terminal else _EVERY_SECONDS) and step < self.steps):
            return
        self._shown = now
        seconds = max(now - self.began, 1e-9)
        pace = max(step - self.first_step, 1) / seconds
        left = (self.steps - step) / pace
        line = f"step {step}/{self.steps}  loss {self.loss:.4f}  {pace:.2f} steps/s  {self.rows * self.world / seconds:.1f} samples/s"
        line += f"  busy {100 * self.busy:.1f} %  {int(left // 60)}:{int(left % 60):02} left"
        print(("\r\x1b[K" if self._terminal else "") + line, file=sys.stderr, end="" if self._terminal else "\n", flush=True)

    @property
    def busy(self) -> float:
        """The share of the time in which steps did not wait for batches."""
        return 1.0 - self.wait / max(self.wall, 1)

    # What else happens

    def scored(self, steps: int, score: Score, best: bool) -> None:
        """The model was tried."""
        shares = "".join(f"  {name} {100 * share:.1f} %" for name, share in score.shares.items())
        self.say(f"held out  step {steps}: loss {score.loss:.4f}{shares}{'  the best so far' if best else ''}")
        if self.writer is not None:
            self.writer.line({"score": {"steps": steps, "loss": score.loss, **score.shares}})
        for sink in self.sinks:
            sink.log(steps, {f"eval/{name}": value for name, value in {"loss": score.loss, **score.shares}.items()})

    def kept(self, report: dict[str, Any]) -> None:
        """What the cache did, where there is one."""
        cache = report.get("cache")
        if cache is None:
            return
        looked = cache["hits"] + cache["misses"]
        share = 100 * cache["hits"] / max(looked, 1)
        done = f"{share:.0f} % of {looked} samples were there, {cache['entries']} are now"
        self.say(f"cache     {cache['level']}: {done}" if looked else f"cache     {cache['why'] or cache['level']}")
        if cache["trouble"]:
            self.warn(f"cache: {cache['trouble']}")

    def left_out(self, bad: Path) -> None:
        """Which samples were left out, and why the first of them was."""
        if not bad.is_file():
            return
        lines = bad.read_text(encoding="utf-8").splitlines()
        first = json.loads(lines[0])
        more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
        self.say(f"left out  `{first['key']}`: {first['reason']}{more}, in {bad}")

    def tuned(self, report: dict[str, Any]) -> None:
        """What the loader changed while it ran."""
        for decision in report.get("tuning", []):
            self.say(f"tuned     {decision['text']}")

    def end(self) -> float:
        """The run is over. How many seconds it took."""
        self.settle()
        if self.writer is not None:
            self.writer.line({"end": {"wall_nanos": self.wall, "overhead_nanos": 0}})
            self.writer.close()
        for sink in self.sinks:
            sink.close()
        if self._terminal and self.speaks:
            print(file=sys.stderr)
        return time.perf_counter() - self.began


class Sink:
    """Where curves go: each has a package of its own, which is asked and not copied."""

    def __init__(self, log: Callable[[int, dict[str, float]], Any], close: Callable[[], Any]) -> None:
        self.log, self.close = log, close


_PACKAGES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}


def _sink(name: str, settings: Settings, say: Callable[[str], None]) -> Sink | None:
    if name == "none":
        return None
    # TensorBoard imports TensorFlow where that is, which has much to say.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        module: Any = importlib.import_module(_PACKAGES[name])
    except ImportError as error:
        if name != "tensorboard":
            raise Wrong(f"--report-to {name}: {error}", f"pip install {name}, or --report-to none") from error
        say("curves    tensorboard is not installed: `pip install tensorboard`; record.jsonl has them too")
        return None
    run = settings.output_dir.name
    if name == "tensorboard":
        writer = module.SummaryWriter(str(settings.output_dir / "tensorboard"))

        def scalars(step: int, values: dict[str, float]) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)

        return Sink(scalars, writer.close)
    if name == "mlflow":
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            module.set_experiment("feedwater")
        module.start_run(run_name=run)
        module.log_params({key: str(value) for key, value in settings.saved().items()})
        return Sink(lambda step, values: module.log_metrics(values, step=step), module.end_run)
    # wandb, and trackio, which takes its words.
    module.init(project=os.environ.get(f"{name.upper()}_PROJECT", "feedwater"), name=run, config=settings.saved())
    return Sink(lambda step, values: module.log(values, step=step), module.finish)


def _before(path: Path, step: int) -> Iterator[dict[str, Any]]:
    """What a record has of the steps before this one, where a run goes on."""
    if step == 0 or not path.is_file():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            # The last one, where the run was killed.
            continue
        if line.get("step", step) < step or line.get("score", {}).get("steps", step + 1) <= step:
            yield line


def folder_of(settings: Settings) -> Path:
    """Where the run goes, made if it is not there."""
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    return settings.output_dir
