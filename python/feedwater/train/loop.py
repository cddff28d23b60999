"""What happens from the first batch to the last? One loop for every recipe, on one device, on two, in several processes.

The loss of a step is the mean over all that is guessed in it, over all micro-batches and processes: gradients of sums are
added up, and divided once by how many guesses there were. So the same samples give the same step however they are divided.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feedwater.attach.record import together
from feedwater.pipeline import Pipeline
from feedwater.torch import TorchLoader
from feedwater.train import memory
from feedwater.train.checkpoints import Checkpoints, Progress, read_progress, read_trainer
from feedwater.train.feed import Feed, loader_of, sized, steps_of
from feedwater.train.group import Group, gradients, norm_of, own
from feedwater.train.places import Places, choose
from feedwater.train.recipe import Recipe, Tensors, only, parts_of, rows_in
from feedwater.train.settings import Settings, Wrong
from feedwater.train.speed import Speed
from feedwater.train.tell import Teller, Took, folder_of
from feedwater.train.zero import Zero

STOPPED = 130
# What `--batch-size auto` keeps: the effective batch is this times the accumulation that was asked for.
USUAL_BATCH = 16
_ONE_SECOND = 1.0
# Steps by which a group on GPUs stops later than it was asked to.
_LATE = 2


@dataclass
class Summary:
    """How a run ended."""

    steps: int
    seconds: float
    busy: float
    data_busy: float | None
    held_out: dict[str, float] | None
    best: tuple[float, int] | None
    model: Path | None
    ended: str

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        best = None if self.best is None else {"wrong": self.best[0], "step": self.best[1]}
        model = None if self.model is None else str(self.model)
        return {"version": 1, "engine": "torch", **self.__dict__, "best": best, "model": model}

    def as_text(self) -> str:
        """As it is printed else."""
        why = {"steps": "", "patience": ", it got no better", "asked": ", stopped: --resume goes on"}[self.ended]
        data = "" if self.data_busy is None else f", the data's device {100 * self.data_busy:.1f} %"
        lines = [f"trained   {self.steps} steps in {self.seconds:.0f} s, busy {100 * self.busy:.1f} %{data}{why}"]
        if self.held_out is not None:
            shares = ", ".join(f"{name} {100 * value:.1f} %" for name, value in self.held_out.items() if name != "loss")
            lines.append(f"held out  loss {self.held_out['loss']:.3f}{', ' if shares else ''}{shares}")
            if self.held_out.get("cer", 0.0) > 0.99:
                lines.append("hint      nothing is right yet: train longer (--max-steps), or on more clips")
        if self.model:
            best = f" (the best, after step {self.best[1]})" if self.best and self.best[1] != self.steps else ""
            lines.append(f"model     {self.model}{best}")
        return "\n".join(lines)


def run(settings: Settings, make: Callable[[Path | None], Recipe]) -> Summary:
    """Trains what `make` makes: of a checkpoint's folder where the run goes on from one, else as the settings say."""
    group = Group(settings)
    teller = Teller(settings, first=group.first, world=group.world)
    places = choose(settings, group.local, teller.say)
    group.join(places.model)
    try:
        return _run(settings, make, group, places, teller)
    finally:
        group.leave()


def _run(
    settings: Settings, make: Callable[[Path | None], Recipe], group: Group, places: Places, teller: Teller
) -> Summary:
    checkpoints = Checkpoints(folder_of(settings))
    found, progress = _go_on_from(settings, checkpoints, group, teller)
    torch.manual_seed(settings.seed)
    recipe = make(found)
    speed = Speed(settings, places, group, recipe)
    model = group.wrap(recipe.model.to(places.model), places.model)
    rate = settings.learning_rate or recipe.learning_rate
    optimizer = speed.optimizer(model, rate)
    if settings.cache_dataset and group.first:
        _read_once(settings.data_dir, teller)

    learned, held = recipe.data()
    step_of = Steps(settings, recipe, model, optimizer, speed, group, places, rate)
    batch_size, accumulation = _divided(settings, recipe, learned, progress, step_of, group, teller)
    if group.several and group.strategy == "deepspeed":
        step_of.zero = Zero(
            settings, group, model, optimizer, batch_size=batch_size, accumulation=accumulation, dtype=speed.dtype
        )
    loader = loader_of(learned, settings, batch_size, group, places)
    # Everywhere the same, whoever evaluates: with shards, all have to.
    tried = loader_of(held, settings, batch_size, None, places)
    if progress.feed:
        trainer = read_trainer(found) if found is not None else {}
        if step_of.zero is not None:
            step_of.zero.restore(progress.step)
        elif "optimizer" in trainer:
            group.restore(model, optimizer, trainer["optimizer"])
        else:
            raise Wrong(f"`{found}` was written with DeepSpeed", "--strategy deepspeed goes on from it")
        if trainer["scaler"] and speed.scaler.is_enabled():
            speed.scaler.load_state_dict(trainer["scaler"])
        loader.load_state_dict(progress.feed)
    progress.batch_size, progress.settings = batch_size * group.world * accumulation, settings.saved()
    steps = settings.max_steps or steps_of(settings, loader, batch_size, accumulation, group)
    step_of.steps, step_of.parts = steps, progress.parts

    for line in [
        f"data      {loader.samples} samples to learn from, {tried.samples} held out",
        f"model     {sum(p.numel() for p in recipe.model.parameters()):,} numbers; {_where(places, group)}",
        *(f"speed     {line}" for line in speed.lines()),
        f"steps     {steps} of {progress.batch_size} samples: {batch_size} at a time"
        + (f", {accumulation} times" if accumulation > 1 else "")
        + (f", in {group.world} processes" if group.several else ""),
    ]:
        teller.say(line)
    if loader.samples < progress.batch_size:
        teller.warn(f"a step has {progress.batch_size} samples, and there are {loader.samples}: steps have what there is")
    teller.kept(loader.report())
    teller.start(steps, progress.step, _about(loader, places, progress.batch_size), places.model)

    batches = Feed(loader, recipe, places, settings, group)
    asked_to_stop = _listen()
    ended, last, saved = "steps", None, progress.step
    may_try = tried.samples > 0

    def save() -> None:
        nonlocal saved
        teller.settle()
        saved, progress.feed = progress.step, batches.state
        weights = group.weights(model)
        state: dict[str, Any] = {"scaler": speed.scaler.state_dict()}
        if step_of.zero is not None:
            step_of.zero.save(progress.step)
        else:
            state["optimizer"] = group.optimizer_state(model, optimizer)
        if group.first:
            try:
                checkpoints.write(progress, lambda folder: recipe.save(folder, weights), state)
            except Exception as error:  # noqa: BLE001 (safetensors and torch have their own for a full disk)
                teller.warn(f"no checkpoint at step {progress.step}: {error}; the run goes on")
        group.wait()

    with _on_top(own(model)):
        while progress.step < steps:
            took = teller.asked(progress.step, batches.epoch)
            stop = step_of.take(progress.step, batches, accumulation, took, teller, asked_to_stop)
            progress.step += 1
            progress.parts = step_of.parts
            teller.took(took)
            due = progress.step == steps or stop
            score = None
            if may_try and (progress.step % settings.eval_steps == 0 or due) and not stop:
                teller.settle()
                # All have computed it, perhaps not to the last bit; what follows from it all have to do alike.
                score = group.from_first(evaluate(recipe, model, tried, speed, places))
                may_try = score is not None
                if not may_try:
                    teller.warn("none of the samples that are held out can be used: the model is not tried on any")
            if score is not None:
                before = (math.inf, math.inf) if progress.best is None else (progress.best[0], progress.best_loss or math.inf)
                # As long as all is wrong, a smaller loss is how it gets better.
                better = (score.judged, score.loss) < before
                if better:
                    progress.best, progress.best_loss = (score.judged, progress.step), score.loss
                progress.evaluations_since_best = 0 if better else progress.evaluations_since_best + 1
                last = {"loss": score.loss, **score.shares}
                teller.scored(progress.step, score, better)
                if better and progress.step % settings.save_steps:
                    save()
                patience = settings.early_stopping_patience
                if patience is not None and progress.evaluations_since_best >= patience:
                    ended = "patience"
            if stop:
                ended = "asked"
            if progress.step % settings.save_steps == 0 or due or ended != "steps":
                if saved != progress.step:
                    save()
            if ended != "steps":
                break
    batches.close()
    seconds = teller.end()
    teller.kept(loader.report())
    teller.tuned(loader.report())
    teller.left_out(settings.output_dir / "quarantine.jsonl")
    data_busy = batches.data_busy(teller.wall)
    return Summary(
        progress.step, seconds, teller.busy, data_busy, last, progress.best, checkpoints.model(progress), ended
    )


class Steps:
    """How a step is taken: micro-batches, their gradients, one step of the optimizer."""

    def __init__(
        self,
        settings: Settings,
        recipe: Recipe,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        speed: Speed,
        group: Group,
        places: Places,
        rate: float,
    ) -> None:
        self.settings, self.recipe, self.model, self.optimizer = settings, recipe, model, optimizer
        self.speed, self.group, self.device, self.rate = speed, group, places.model, rate
        self.steps = 0
        # Where DeepSpeed does the rest.
        self.zero: Zero | None = None
        self._asked: deque[tuple[torch.Tensor, Any]] = deque()
        # How many parts each micro-batch is divided into, since memory did not suffice.
        self.parts = 1
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def take(
        self, step: int, batches: Feed, accumulation: int, took: Took, teller: Teller, asked_to_stop: list[int]
    ) -> bool:
        """Takes a step. Whether anybody has asked to stop."""
        self._begin(step)
        kept: list[Tensors] = []
        sums = torch.zeros(3, device=self.device)
        for at in range(accumulation):
            asked = teller.clock.mark()
            batch = next(batches)
            got = teller.part(took, "wait", asked)
            batch = batches.placed(batch)
            took.rows += rows_in(batch)
            took.input = together(took.input, batches.last_input)
            kept.append(batch)
            said = self._tried(sums, batch, last=at + 1 == accumulation)
            while said is not None:
                self._split(said, batch, accumulation, teller)
                sums.zero_()
                self._begin(step)
                said = None
                for again, before in enumerate(kept):
                    # From the first: what the one that failed had added is not known.
                    said = said or self._tried(sums, before, last=again + 1 == accumulation)
            teller.part(took, "compute", got)
            if self.settings.on_oom != "split":
                kept.clear()
        began = teller.clock.mark()
        sums[2] = float(bool(asked_to_stop))
        self.group.sum(sums)
        norm = self.update(sums[1])
        took.rate = self.rate * self.schedule(step)
        took.scaled = self.speed.scaler.is_enabled()
        # Copied beside the work: who waited for it would hold the device up.
        took.numbers = torch.stack([sums[0] / sums[1].clamp(min=1), norm.to(sums.device)]).to("cpu", non_blocking=True)
        teller.part(took, "optimizer", began)
        return self._agreed(sums[2]) if self.group.several else bool(asked_to_stop)

    def _agreed(self, asked: torch.Tensor) -> bool:
        """Whether anybody in the group has asked to stop. On a GPU, some steps ago: the device is not waited for."""
        passed = None
        if self.device.type == "cuda":
            passed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._asked.append((asked.to("cpu", non_blocking=True), passed))
        if passed is not None:
            passed.record()
            if len(self._asked) <= _LATE:
                return False
        numbers, event = self._asked.popleft()
        if event is not None:
            event.synchronize()
        return bool(numbers > 0)

    def forget(self) -> None:
        """As if nothing had been tried."""
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        scaler = self.speed.scaler
        self.speed.scaler = torch.amp.GradScaler(self.device.type, enabled=scaler.is_enabled())

    def _begin(self, step: int) -> None:
        # Of the step alone: the same after every resume.
        torch.manual_seed((self.settings.seed * 1_000_003 + step) * 4_099 + self.group.rank)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self.rate * self.schedule(step)

    def learn(self, batch: Tensors, *, last: bool) -> torch.Tensor:
        """The gradients of a micro-batch; its loss as a sum, and its guesses."""
        sums = torch.zeros(2, device=self.device)
        parts = list(parts_of(batch, self.parts)) or [batch]
        for at, part in enumerate(parts):
            with self.group.without_sync(self.model, last and at + 1 == len(parts)):
                with self.speed.autocast():
                    loss, guesses = self._loss(part)
                if self.zero is not None:
                    self.zero.backward(loss, guesses)
                    if not (last and at + 1 == len(parts)):
                        self.zero.between()
                    sums += torch.stack([loss.detach().float(), guesses.to(self.device).float()])
                    continue
                # The usual number of samples keeps it in range for f16; `update` divides by what is right.
                self.speed.scaler.scale(loss / USUAL_BATCH).backward()  # type: ignore[no-untyped-call]
            sums += torch.stack([loss.detach().float(), guesses.to(self.device).float()])
        return sums

    def _loss(self, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        valid = batch.about.get("valid")
        if valid is None or all(valid):
            return self.recipe.loss(self.model, batch)
        if any(valid):
            return self.recipe.loss(self.model, only(batch, list(valid)))
        # All were bad, and stand for another: its gradients are zeros, for which others wait.
        loss, guesses = self.recipe.loss(self.model, batch)
        return torch.nan_to_num(loss) * 0.0, guesses * 0

    def update(self, guesses: torch.Tensor) -> torch.Tensor:
        """A step of the optimizer. The norm of the gradient before it was clipped."""
        if self.zero is not None:
            return self.zero.step(self.device)
        grads = gradients(self.parameters)
        if self.speed.scaler.is_enabled():
            self.speed.scaler.unscale_(self.optimizer)
        # Processes' gradients were averaged; what is wanted is their sum over all guesses.
        factor = USUAL_BATCH * self.group.world / guesses.clamp(min=1)
        norm = norm_of(grads) * factor
        most = self.settings.max_grad_norm
        if most > 0:
            factor = factor * (most / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].device, grads[0].dtype) if grads else factor)
        self.speed.scaler.step(self.optimizer)
        self.speed.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def schedule(self, step: int) -> float:
        """The share of the highest rate: it rises, then falls."""
        warm = self.settings.warmup_steps
        if step < warm:
            return step / warm
        done = min((step - warm) / max(self.steps - warm, 1), 1.0)
        kind = self.settings.lr_scheduler_type
        return 1.0 if kind == "constant" else 1.0 - done if kind == "linear" else 0.5 * (1 + math.cos(math.pi * done))

    # Out of memory

    def _tried(self, sums: torch.Tensor, batch: Tensors, *, last: bool) -> str | None:
        """Learns from a micro-batch; or what the device said when its memory did not suffice.

        The error itself does not leave: it holds on to what was computed until then.
        """
        try:
            sums[:2] += self.learn(batch, last=last)
        except torch.OutOfMemoryError as error:
            return (str(error).splitlines() or ["out of memory"])[0]
        return None

    def _split(self, said: str, batch: Tensors, accumulation: int, teller: Teller) -> None:
        rows = -(-rows_in(batch) // self.parts)
        if self.settings.on_oom != "split" or self.group.several or rows <= 1:
            raise memory.out_of_memory(said, micro_batch=rows, accumulation=accumulation * self.parts)
        self.parts *= 2
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        teller.say(f"memory    did not suffice for {rows} samples: now {-(-rows // 2)} at a time, and as many more times")


def evaluate(recipe: Recipe, model: torch.nn.Module, loader: TorchLoader, speed: Speed, places: Places) -> Any:
    """How the model does on what it does not learn from; nothing where there is none of it."""
    inner = own(model)
    inner.eval()

    def batches() -> Iterator[Tensors]:
        loader.set_epoch(0)
        for batch in _usable(loader):
            valid = list(batch.about.get("valid") or [])
            if not any(valid):
                continue
            batch = batch if all(valid) else only(batch, valid)
            # Features are exact, as they are in training.
            with torch.autocast(places.model.type, enabled=False):
                batch = recipe.prepare(batch, learning=False, generator=None).to(places.model)
            yield batch

    try:
        with torch.no_grad(), speed.autocast():
            some = batches()
            first = next(some, None)
            return None if first is None else recipe.score(inner, itertools.chain([first], some))
    finally:
        inner.train()


def _usable(loader: TorchLoader) -> Iterator[Tensors]:
    try:
        yield from loader
    except RuntimeError as error:
        # All were bad, or too long.
        if "failed; the first was" not in str(error):
            raise


# What comes before the first step


def _go_on_from(
    settings: Settings, checkpoints: Checkpoints, group: Group, teller: Teller
) -> tuple[Path | None, Progress]:
    """The checkpoint to go on from, and where the run is."""
    mark = settings.output_dir / ".started-by"
    started_by = os.environ.get("TORCHELASTIC_RUN_ID", "")
    # Only what this launch has begun itself: a folder that it refused is still another's.
    resume = settings.resume or (group.restarted and mark.is_file() and mark.read_text() == started_by)
    if not resume:
        if group.first:
            checkpoints.refuse_another(settings.output_dir)
            (settings.output_dir / "quarantine.jsonl").unlink(missing_ok=True)
            mark.write_text(started_by)
        # Nobody writes before all have looked.
        group.wait()
        return None, Progress()
    found, wrong = group.from_first(checkpoints.newest() if group.first else None)
    for line in wrong:
        teller.warn(f"{line}; the one before it is looked at")
    if found is None:
        if wrong:
            raise Wrong("none of the checkpoints can be used", "another --output-dir, to begin anew")
        teller.warn("there is no checkpoint to go on from: it begins anew")
        return None, Progress()
    progress = read_progress(found)
    now = settings.saved()
    for name, before in progress.settings.items():
        if now.get(name) != before:
            flag = f"--{name.replace('_', '-')}"
            raise Wrong(f"{flag} was {before}, and is {now.get(name)} now", f"{flag} {before}, or another --output-dir")
    teller.say(f"resumed   after step {progress.step}, from {found}")
    return found, progress


def _divided(
    settings: Settings,
    recipe: Recipe,
    learned: Pipeline,
    progress: Progress,
    step_of: Steps,
    group: Group,
    teller: Teller,
) -> tuple[int, int]:
    """How many samples at a time, and how many times for a step. A run that goes on keeps its effective batch."""
    accumulation = settings.gradient_accumulation_steps
    if isinstance(settings.batch_size, int):
        batch_size = settings.batch_size
        effective = batch_size * group.world * accumulation
        if progress.batch_size and progress.batch_size != effective:
            raise Wrong(
                f"a step had {progress.batch_size} samples, and would have {effective} now",
                "--batch-size × --gradient-accumulation-steps × processes is to be the same",
            )
        return batch_size, accumulation
    if group.several and group.strategy != "ddp":
        raise Wrong(f"--batch-size auto is not for {group.strategy}", "a number: --batch-size 4")
    wanted = USUAL_BATCH * accumulation
    if progress.batch_size:
        wanted = progress.batch_size // group.world
    pipeline = sized(learned, settings, min(wanted, 32)).ranks(0, 1)
    batch = next(iter(pipeline.torch(device=str(step_of.device))))
    batch = recipe.prepare(batch, learning=True, generator=None).to(step_of.device)

    def step(sized: Tensors) -> None:
        # With a rate of 0 nothing is learned, and the optimizer has what it will need.
        for parameters in step_of.optimizer.param_groups:
            parameters["lr"] = 0.0
        sums = step_of.learn(sized, last=True)
        step_of.update(sums[1])

    size = 1
    if group.first:
        # By itself: others would have to try the same at the same time.
        shared, step_of.model = step_of.model, own(step_of.model)
        trials = memory.look(wanted, memory.attempt(batch, step_of.device, step))
        step_of.model = shared
        step_of.forget()
        teller.say(f"batch     {'; '.join(map(str, trials))}")
        size = memory.knee(trials)
    size = group.from_first(size)
    accumulation = wanted // size
    teller.say(f"batch     {size} at a time{f', {accumulation} times' if accumulation > 1 else ''}: nearly as fast as any, and {wanted} samples a step as asked for")
    return size, accumulation


def _about(loader: TorchLoader, places: Places, batch_size: int) -> dict[str, Any]:
    """What a record says of a run."""
    devices = []
    for role, device in (("model", places.model), ("data", places.data)):
        if device.type == "cuda" and not (role == "data" and places.are_one):
            about = torch.cuda.get_device_properties(device)
            index = device.index or 0
            devices.append({"index": index, "name": about.name, "memory_bytes": about.total_memory, "role": role, "links": {}})
    return {"devices": devices, "settings": {**loader.settings(), "batch_size": batch_size}}


def _where(places: Places, group: Group) -> str:
    where = f"data on {places.data}, the model on {places.model}"
    if places.are_one:
        where = f"one device for the data and the model, {places.model}"
    return where + (f"; {group.world} processes, {group.strategy}" if group.several else "")


def _read_once(data: Path, teller: Teller) -> None:
    """Reads all files, so that the system has them in memory from the first step on."""
    began, size = time.perf_counter(), 0
    files = [data] if data.is_file() else sorted(path for path in data.rglob("*") if path.is_file())
    for path in files:
        with path.open("rb") as file:
            while read := len(file.read(1 << 22)):
                size += read
    teller.say(f"cache     {len(files)} files, {size / 1e6:.0f} MB, read into the system's memory in {time.perf_counter() - began:.1f} s")


def _listen() -> list[int]:
    """Has the first Ctrl-C, or what asks a process to end, end the run after a checkpoint; the second ends the program."""
    asked: list[int] = []
    first = 0.0

    def heard(number: int, _: object) -> None:
        nonlocal first
        # A terminal sends it to us and to whoever started us, who passes it on: that is one.
        if asked and time.monotonic() - first > _ONE_SECOND:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not asked:
            first = time.monotonic()
            asked.append(number)

    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, heard)
    except ValueError:
        # Not in the main thread: whoever started it there answers for it.
        pass
    return asked


class _on_top:  # noqa: N801 (a context manager)
    """The model learns within it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.model.train()

    def __exit__(self, *_: object) -> None:
        self.model.eval()


def finish(settings: Settings, summaries: list[Summary]) -> int:
    """Prints how it went, and gives the exit code."""
    if int(os.environ.get("RANK", "0")) == 0:
        if settings.json:
            *before, last = [summary.as_json() for summary in summaries]
            print(json.dumps({**last, "encoder": before[0] if before else None}))
        else:
            print("\n".join(summary.as_text() for summary in summaries))
    return STOPPED if any(summary.ended == "asked" for summary in summaries) else 0
