"""How does a run survive a kill at any moment? By the native trainer's checkpoints: a folder that appears at once, with
checksums; the newest two are kept, and the best. The model in it is one to use, and to give to transformers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from feedwater import _core
from feedwater.train.settings import Wrong

TRAINER = "trainer.pt"
PROGRESS = "progress.json"


@dataclass
class Progress:
    """What a run is at, beside its numbers."""

    step: int = 0
    epoch: int = 0
    feed: dict[str, Any] = field(default_factory=dict)
    best: tuple[float, int] | None = None
    best_loss: float | None = None
    evaluations_since_best: int = 0
    # How a step is divided; their product with the number of processes is the effective batch.
    batch_size: int = 0
    parts: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """Those of a run."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"
        self._core = _core.Checkpoints(self.folder)

    def refuse_another(self, run: Path) -> None:
        """Two runs in one folder would take each other's."""
        if not self._core.is_empty():
            raise Wrong(
                f"there is a run in `{run}` already", "--resume goes on with it; another --output-dir begins anew"
            )

    def write(self, progress: Progress, save: Any, trainer: dict[str, Any]) -> Path:
        """Writes one. `save` writes the model into a folder."""
        folder = Path(self._core.begin(progress.step))
        try:
            save(folder)
            torch.save(trainer, folder / TRAINER)
            (folder / PROGRESS).write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")
        except BaseException:
            self._core.abandon(progress.step)
            raise
        return Path(self._core.finish(progress.step, None if progress.best is None else progress.best[1]))

    def newest(self) -> tuple[Path | None, list[str]]:
        """The newest that is whole, and what is wrong with newer ones."""
        found, wrong = self._core.newest()
        return (None if found is None else Path(found)), wrong

    def model(self, progress: Progress) -> Path | None:
        """Where the best model is, or the last."""
        steps = [step for step in (progress.best and progress.best[1], progress.step) if step]
        return next((path for step in steps if (path := Path(self._core.path(step))).is_dir()), None)


def read_progress(folder: Path) -> Progress:
    """What a checkpoint says of its run."""
    if not (folder / TRAINER).is_file():
        raise Wrong(f"`{folder}` was written by the native trainer", "--engine native goes on from it")
    said = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    said["best"] = None if said["best"] is None else tuple(said["best"])
    return Progress(**said)


def read_trainer(folder: Path) -> dict[str, Any]:
    """What the optimizer and the scaler knew."""
    return torch.load(folder / TRAINER, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a model that was saved, in one file or in several. What is not a number is found here."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise Wrong(f"`{folder}` has no model.safetensors", "a folder in Hugging Face's format")
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        weights |= load_file(file)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise Wrong(
                f"`{name}` of `{folder}` is not finite",
                "training went wrong before it was saved: take an earlier checkpoint",
            )
    return weights
