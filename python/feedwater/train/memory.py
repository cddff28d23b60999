"""Which batch size, and what if memory does not suffice?

`--batch-size auto` looks for the knee: the smallest micro-batch whose throughput is within 5 % of the best there is under the
memory's ceiling. The largest that fits is no aim: it is no faster, and the longest batch of an epoch would not fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from feedwater.train.recipe import Tensors, rows_in
from feedwater.train.settings import Wrong

# What a batch that is longer than those that were tried may need more.
_MARGIN = 0.85
_NEAR_THE_BEST = 0.95
# A doubling that brings less than this is behind the knee.
_WORTH_DOUBLING = 1.05
_ROUNDS = 3


@dataclass
class Trial:
    """A batch size that was tried."""

    size: int
    samples_a_second: float
    memory: float | None
    """The share of the device's memory, where that is known."""
    fits: bool

    def __str__(self) -> str:
        if not self.fits and not self.samples_a_second:
            return f"{self.size}: out of memory"
        memory = "" if self.memory is None else f", {100 * self.memory:.0f} % of memory"
        return f"{self.size}: {self.samples_a_second:.1f} samples/s{memory}{'' if self.fits else ', too near the ceiling'}"


def knee(trials: list[Trial]) -> int:
    """The smallest size that is nearly as fast as any that fits."""
    fitting = [trial for trial in trials if trial.fits]
    if not fitting:
        raise Wrong(
            "not even one sample fits into the memory there is",
            "--gradient-checkpointing, --precision bf16, a smaller --model, or shorter samples",
        )
    best = max(trial.samples_a_second for trial in fitting)
    return min(trial.size for trial in fitting if trial.samples_a_second >= _NEAR_THE_BEST * best)


def look(most: int, attempt: Callable[[int], Trial]) -> list[Trial]:
    """Tries 1, 2, 4, … samples, of which a step is made without a rest, until it is no faster or does not fit."""
    trials: list[Trial] = []
    size = 1
    while most % size == 0:
        trial = attempt(size)
        trials.append(trial)
        if not trial.fits:
            break
        if len(trials) >= 3:
            before = trials[-3]
            # Twice in a row, so that noise does not end it.
            if trial.samples_a_second < before.samples_a_second * _WORTH_DOUBLING:
                break
        size *= 2
    return trials


def attempt(batch: Tensors, device: torch.device, step: Callable[[Tensors], None]) -> Callable[[int], Trial]:
    """Steps with so many copies of the longest rows of a batch, and how fast they are."""

    def rows(size: int) -> Tensors:
        return batch.replaced(lambda tensor: tensor.repeat((-(-size // len(tensor)), *[1] * (tensor.dim() - 1)))[:size])

    def run(size: int) -> Trial:
        sized = rows(size)
        for name, value in list(batch.about.items()):
            if isinstance(value, (list, tuple)) and len(value) == rows_in(batch):
                sized.about[name] = (list(value) * (-(-size // len(value))))[:size]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        times: list[float] = []
        try:
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                step(sized)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                times.append(time.perf_counter() - began)
        except torch.OutOfMemoryError:
            fits = False
        else:
            fits = True
        if not fits:
            torch.cuda.empty_cache()
            return Trial(size, 0.0, None, fits=False)
        memory = None
        if device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory * torch.cuda.get_per_process_memory_fraction(device)
            memory = torch.cuda.max_memory_allocated(device) / total
        # The first has what is only paid once.
        return Trial(size, size / min(times[1:]), memory, fits=memory is None or memory <= _MARGIN)

    return run


def out_of_memory(said: str, *, micro_batch: int, accumulation: int) -> Wrong:
    """What to say when memory does not suffice: the settings to change, with numbers."""
    half = max(micro_batch // 2, 1)
    hints = [f"--batch-size {half} --gradient-accumulation-steps {accumulation * 2}"] if micro_batch > 1 else []
    hints += ["--on-oom split, which does that by itself", "--gradient-checkpointing", "--precision bf16"]
    return Wrong(f"the device's memory does not suffice for {micro_batch} samples: {said}", "; or ".join(hints))
