"""How does DeepSpeed's ZeRO share a model? Each process keeps a shard of the optimizer's numbers and of the gradients.

DeepSpeed adds gradients up, clips and steps itself, so what it is given is a loss that is right already: the sum of the losses
over the guesses of all processes. Its own part of a checkpoint lies beside ours, by the step's number.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import torch

from feedwater.train.group import Group
from feedwater.train.settings import Settings, Wrong

_STAGE = 2


def configuration(settings: Settings, batch_size: int, accumulation: int, dtype: torch.dtype) -> dict[str, Any]:
    """What DeepSpeed is told."""
    said: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": settings.max_grad_norm,
        "zero_optimization": {"stage": _STAGE, "overlap_comm": True, "contiguous_gradients": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if dtype is torch.bfloat16:
        said["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return said


class Zero:
    """A model that DeepSpeed trains."""

    def __init__(
        self,
        settings: Settings,
        group: Group,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int,
        accumulation: int,
        dtype: torch.dtype,
    ) -> None:
        try:
            import deepspeed  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise Wrong(f"--strategy deepspeed: {error}", "pip install deepspeed ninja, or --strategy fsdp") from error
        if dtype is torch.float16:
            raise Wrong("f16 with DeepSpeed is not done here", "--precision bf16, or --strategy fsdp")
        if accumulation > 1 and group.first:
            print("deepspeed micro-batches of a step count the same, however much there is to guess in each", file=sys.stderr)
        said = configuration(settings, batch_size, accumulation, dtype)
        self.group, self.folder = group, settings.output_dir / "deepspeed"
        if group.first:
            # To read, and for those who want more than is set here.
            (settings.output_dir / "deepspeed.json").write_text(json.dumps(said, indent=2), encoding="utf-8")
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=said)

    def backward(self, loss: torch.Tensor, guesses: torch.Tensor) -> None:
        """The gradients of a micro-batch. Of several, each counts the same: how many guesses follow is not known yet."""
        total = self.group.sum(guesses.to(loss.device).float().clone())
        self.engine.backward(loss * self.group.world / total.clamp(min=1))

    def step(self, device: torch.device) -> torch.Tensor:
        """A step of the optimizer. The norm of the gradient before it was clipped."""
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        return torch.as_tensor(0.0 if norm is None else norm, device=device).float()

    def between(self) -> None:
        """A micro-batch that is not the last of its step."""
        self.engine.step()

    def save(self, step: int) -> None:
        """Writes the shards of all processes; of the steps before, the last is kept."""
        self.engine.save_checkpoint(str(self.folder), tag=f"step-{step:08}")
        if self.group.first:
            for old in sorted(self.folder.glob("step-*"))[:-3]:
                shutil.rmtree(old, ignore_errors=True)

    def restore(self, step: int) -> None:
        """Puts the shards back."""
        found, _ = self.engine.load_checkpoint(str(self.folder), tag=f"step-{step:08}", load_module_strict=False)
        if found is None:
            raise Wrong(
                f"`{self.folder}` has nothing of step {step}",
                "--strategy deepspeed goes on with as many processes as it had; another --output-dir begins anew",
            )

