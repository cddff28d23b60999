"""On which devices? The model on one, and where there are two, the data on the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from feedwater.train.settings import Settings, Wrong

MEGABYTE = 1024 * 1024
_KINDS = ("cpu", "cuda", "mps", "xpu")


@dataclass
class Places:
    """Where the model is, and where batches are prepared."""

    model: torch.device
    data: torch.device

    @property
    def are_one(self) -> bool:
        """Whether it is the same device."""
        return self.model == self.data


def choose(settings: Settings, local_rank: int, say: Callable[[str], None]) -> Places:
    """The devices that were asked for; what is not here is told, or refused where it would be something else."""
    model, data = _named(settings.device, "device"), _named(settings.data_device, "data_device")
    if settings.model_gpu is not None and settings.model_gpu == settings.data_gpu:
        raise Wrong(
            f"the data and the model are both to be on GPU {settings.model_gpu}",
            "leave out --data-gpu: features are made on the model's GPU then, or on the cores",
        )
    if not torch.cuda.is_available():
        wanted = [f"--{name.replace('_', '-')} {gpu}" for name, gpu in _gpus(settings) if gpu is not None]
        if wanted:
            say(f"devices   there is no GPU that torch can use here: {' and '.join(wanted)} mean the CPU")
        ceilings = (settings.data_gpu_memory, settings.model_gpu_memory)
        if settings.enable_memory_isolation or any(ceilings):
            say("memory    ceilings are for GPUs, and there is none: they do nothing")
        for device in (model, data):
            if device is not None and device.type == "cuda":
                raise Wrong(f"`{device}` is not here: torch sees no CUDA device", "`feedwater doctor` says what is missing")
        model = model or torch.device("cpu")
        return Places(model, data or model)

    cards = torch.cuda.device_count()
    for name, gpu in _gpus(settings):
        if gpu is not None and gpu >= cards:
            there = "GPU 0" if cards == 1 else f"GPUs 0 to {cards - 1}"
            raise Wrong(f"there is no GPU {gpu} for --{name.replace('_', '-')}: torch sees {there}", "`nvidia-smi -L` lists them")
    if settings.model_gpu is not None:
        model = torch.device("cuda", settings.model_gpu)
    if settings.data_gpu is not None:
        data = torch.device("cuda", settings.data_gpu)
    model = _numbered(model or torch.device("cuda"), local_rank % cards)
    data = model if data is None else _numbered(data, model.index or 0)
    if model.type != "cuda":
        return Places(model, data)
    limit = settings.enable_memory_isolation or settings.data_gpu_memory or settings.model_gpu_memory
    if limit:
        _hold(model, settings.model_gpu_memory, "model_gpu_memory", say)
        if data != model and data.type == "cuda":
            _hold(data, settings.data_gpu_memory, "data_gpu_memory", say)
    torch.cuda.set_device(model)
    return Places(model, data)


def _numbered(device: torch.device, index: int) -> torch.device:
    return torch.device("cuda", index) if device.type == "cuda" and device.index is None else device


def _gpus(settings: Settings) -> list[tuple[str, int | None]]:
    return [("data_gpu", settings.data_gpu), ("model_gpu", settings.model_gpu)]


def _named(name: str | None, flag: str) -> torch.device | None:
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in _KINDS:
        hint = f"one of {', '.join(_KINDS)}, with a number or without: cuda:1; vulkan is for --engine native"
        raise Wrong(f"`--{flag.replace('_', '-')} {name}` is no device to train on", hint)
    return device


def _hold(device: torch.device, megabytes: int | None, flag: str, say: Callable[[str], None]) -> None:
    """Holds this process to a share of a card's memory: more is an error, not another program's."""
    total = torch.cuda.get_device_properties(device).total_memory
    if megabytes is None:
        # What is left for the desktop and the driver.
        share = 0.9
    else:
        share = megabytes * MEGABYTE / total
        if share > 1.0:
            raise Wrong(
                f"--{flag.replace('_', '-')} {megabytes} is above the {total // MEGABYTE} MB that {device} has",
                f"--{flag.replace('_', '-')} {int(total * 0.9) // MEGABYTE} leaves room for the driver",
            )
    torch.cuda.set_per_process_memory_fraction(share, device)
    say(f"memory    {device} is held to {share * total / MEGABYTE:.0f} of {total / MEGABYTE:.0f} MB")
