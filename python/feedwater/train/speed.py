"""Which settings make a step fast, and why? All of them, in one place. Each says whether it is on, and the reason."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import torch

from feedwater.train.group import Group
from feedwater.train.places import Places
from feedwater.train.recipe import Recipe
from feedwater.train.settings import Settings, Wrong

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass
class Choice:
    """One setting: what it is, `on`, `off` or `not here`, and why."""

    name: str
    state: str
    why: str


class Speed:
    """What was chosen, and what the loop needs of it."""

    def __init__(self, settings: Settings, places: Places, group: Group, recipe: Recipe) -> None:
        self.settings, self.device = settings, places.model
        self.cuda = places.model.type == "cuda"
        self.choices: list[Choice] = []
        self.dtype = self._precision()
        # Losses of half precision are multiplied, so that small gradients do not become zero; what overflows is skipped.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)
        self._matrices()
        attends = settings.recipe != "cnn-lstm"
        why = "scores are not written to memory" if attends else "there is no attention in this model"
        self._say("SDPA attention", attends or None, why)
        self._say("channels-last", None, "no model here has convolutions in two dimensions")
        self.fused = self.cuda
        self._say("fused AdamW", self.fused or None, "one kernel for all weights" if self.cuda else "CUDA has it")
        self._say("gradients set to none", True, "nothing is cleared that is written anyway")
        self._recompute(recipe)
        self._compile(recipe, group)
        self._say(
            "pinned, asynchronous copies",
            self.cuda or None,
            "batches are on the GPU before the step asks" if self.cuda else "the model is where the batches are",
        )
        device = settings.augment_on == "device"
        augments = settings.noise is not None or settings.time_masks > 0
        why = "not asked for"
        if augments:
            why = "the cores do it; --augment-on device" if not device else "no core is needed" if self.cuda else "as asked for"
        self._say("noise and masks on the device", device if augments else None, why)

    def _say(self, name: str, on: bool | None, why: str) -> None:
        self.choices.append(Choice(name, {True: "on", False: "off", None: "not here"}[on], why))

    def _precision(self) -> torch.dtype:
        wish = self.settings.precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "").replace("fp", "f") or None
        wish = None if wish in ("no", "f8") else wish
        if self.cuda:
            modern = torch.cuda.is_bf16_supported(including_emulation=False)
            if wish == "bf16" and not modern:
                raise Wrong("this GPU does not compute in bf16", "--precision f16 has a loss scaler; --precision f32")
            chosen = wish or ("bf16" if modern else "f16")
            why = "asked for" if wish else "half the memory, matrices on tensor cores"
            if chosen == "f16" and not wish:
                why = "this GPU has no bf16; losses are scaled"
        elif wish in ("bf16", "f16") and self.settings.device is None:
            # It was meant for a GPU.
            chosen, why = "f32", f"{wish} was several times slower than f32 where it was tried; --device cpu insists on it"
        else:
            chosen = wish or "f32"
            why = "asked for" if chosen != "f32" else "the CPU computes in f32 fastest"
        self._say(f"{chosen if chosen != 'f32' else 'half precision'} autocast", chosen != "f32", why)
        if chosen == "f16":
            self._say("loss scaling", True, "what overflows is skipped, and the scale halved")
        return _DTYPES[chosen]

    def _matrices(self) -> None:
        static = self.settings.enable_static_shapes or self.settings.recipe == "whisper"
        if self.cuda:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
            torch.backends.cudnn.benchmark = static
        self._say("TF32", self.cuda or None, "f32 matrices on tensor cores" if self.cuda else "CUDA has it")
        why = "shapes are always the same" if static else "every new shape would be tried out anew"
        self._say("cuDNN benchmark", static if self.cuda else None, why if self.cuda else "CUDA has it")

    def _recompute(self, recipe: Recipe) -> None:
        wish = self.settings.gradient_checkpointing
        on = wish == "on" or (wish is None and recipe.recomputes)
        if on and not recipe.checkpoint_activations():
            self._say("gradient checkpointing", None, "this model keeps little")
        else:
            self._say("gradient checkpointing", on, "less memory for a third more work" if on else "memory is not asked to be saved")

    def _compile(self, recipe: Recipe, group: Group) -> None:
        if not self.settings.compile:
            self._say("compile", False, "--compile: faster steps after a slow start")
            return
        if group.several and group.strategy != "ddp":
            self._say("compile", None, "not with shards")
            return
        # In place: names of weights stay what they are.
        recipe.model.compile()
        self._say("compile", True, "the first steps are slow")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Where the forward pass computes in half precision."""
        if self.dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def optimizer(self, model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
        """AdamW with PyTorch's defaults."""
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(learned, lr=rate, weight_decay=self.settings.weight_decay, fused=self.fused or None)

    def lines(self) -> list[str]:
        """What was chosen, for the start of a run."""
        return [f"{choice.name:30} {choice.state:9} {choice.why}" for choice in self.choices]
