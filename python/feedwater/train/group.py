"""How do several processes share a model? By engines that exist: DDP, FSDP2, DeepSpeed. Each process gets its slice of one
global order from the pipeline (`RANK`, `WORLD_SIZE`), whoever started it: torchrun, accelerate, Slurm."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as full
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from feedwater.train.settings import Settings, Wrong

# An evaluation or a checkpoint of one process may keep the others waiting.
_PATIENCE = timedelta(minutes=30)
_JOINS = itertools.count()


class Group:
    """The processes that train together; often one."""

    def __init__(self, settings: Settings) -> None:
        try:
            self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
            self.local = int(os.environ.get("LOCAL_RANK", "0"))
        except ValueError as error:
            raise Wrong(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers: {error}", "torchrun sets them") from None
        # `accelerate launch --use_fsdp` says it this way.
        self.strategy = "fsdp" if os.environ.get("ACCELERATE_USE_FSDP") == "true" else settings.strategy
        if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
            self.strategy = "deepspeed"
        self._joined = False

    @property
    def first(self) -> bool:
        """Whether this is the process that tells and writes."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.world > 1

    @property
    def restarted(self) -> bool:
        """Whether torchrun has started it again, because a process died."""
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

    def join(self, device: torch.device) -> None:
        """Waits for the others, who do the same."""
        if not self.several or dist.is_initialized():
            return
        # Windows has no NCCL.
        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        store, rank, world = next(rendezvous("env://", timeout=_PATIENCE))
        # torchrun keeps its store when it starts processes again, with the addresses of those that died in it.
        # One process may join more than once, for one run after the other.
        attempt, join = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), next(_JOINS)
        store = PrefixStore(f"feedwater-{attempt}-{join}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_PATIENCE)
        self._joined = True

    def leave(self) -> None:
        """The end of it."""
        if self._joined:
            dist.destroy_process_group()

    def wrap(self, model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """The model, shared."""
        if not self.several or self.strategy == "deepspeed":
            return model
        if self.strategy == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(device.type, (self.world,))
            # Inner ones first.
            for layers in reversed([module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]):
                for layer in layers:
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model
        # Parts that are fixed have no gradient to wait for; the others are all used in every step.
        return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    def without_sync(self, model: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients stay here until the last micro-batch of a step: the others need not be told of each."""
        if isinstance(model, DistributedDataParallel):
            return contextlib.nullcontext() if last else model.no_sync()
        sync = getattr(model, "set_requires_gradient_sync", None)
        if sync is not None:
            sync(last)
        return contextlib.nullcontext()

    def sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        if self.several:
            dist.all_reduce(numbers)
        return numbers

    def wait(self) -> None:
        """Until all are here."""
        if self.several:
            dist.barrier()

    def from_first(self, value: Any) -> Any:
        """What the first process has."""
        if not self.several:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    # Weights and what the optimizer knows, whole, whatever the strategy: so a run may go on with another.

    def weights(self, model: torch.nn.Module) -> dict[str, torch.Tensor] | None:
        """All weights, in the first process, where no process has them all anyway."""
        if not self.several or self.strategy != "fsdp":
            return None
        whole = full.get_model_state_dict(model, options=_whole(offload=True))
        # Of weights that are one under two names, one name is saved, as transformers does.
        names = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
        return {name: tensor for name, tensor in whole.items() if name in names}  # type: ignore[misc]

    def optimizer_state(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """What the optimizer knows, by the names of the weights."""
        return full.get_optimizer_state_dict(model, optimizer, options=_whole(offload=self.several))

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Puts what the optimizer knew back, where each process has its own part of it."""
        full.set_optimizer_state_dict(model, optimizer, state, options=_whole(offload=False))


def _whole(*, offload: bool) -> full.StateDictOptions:
    return full.StateDictOptions(full_state_dict=True, cpu_offload=offload)


def own(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, within what shares it."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """The gradients there are."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def norm_of(grads: list[torch.Tensor]) -> torch.Tensor:
    """The norm of all gradients together, over all shards."""
    norm = torch.nn.utils.get_total_norm(grads)
    whole = getattr(norm, "full_tensor", None)
    return norm if whole is None else whole()
