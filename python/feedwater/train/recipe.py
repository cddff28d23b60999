"""What does a recipe say? Which stages its data goes through, what its loss is, how good it is, how it is saved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from feedwater import _core
from feedwater.pipeline import Batch, Pipeline, open
from feedwater.train.settings import Settings, Wrong

Tensors = Batch[torch.Tensor]


@dataclass
class Score:
    """How the model did on samples that it does not learn from."""

    loss: float
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def judged(self) -> float:
        """What makes one score better than another: less of it."""
        return next(iter(self.shares.values()), self.loss)


class Recipe:
    """A model and all that is peculiar to it. The loop does the rest, for every recipe alike."""

    name = ""
    learning_rate = 1e-3
    # Whether `--gradient-checkpointing` is on unless it is said to be off.
    recomputes = False
    # Files of the folder that the model came from, passed on as they are.
    others: tuple[str, ...] = ()

    def __init__(self, settings: Settings, model: torch.nn.Module, folder: Path | None) -> None:
        self.settings = settings
        self.model = model
        # Now: the folder may be a checkpoint that is not kept.
        self._others = {
            name: (folder / name).read_bytes() for name in self.others if folder is not None and (folder / name).is_file()
        }

    def pipeline(self, data: Pipeline, *, learning: bool) -> Pipeline:
        """What becomes of the samples, up to batches of any size."""
        raise NotImplementedError

    def prepare(self, batch: Tensors, *, learning: bool, generator: torch.Generator | None) -> Tensors:
        """What is done with a batch on the data's device: features, noise, masks."""
        return batch

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the losses of all that is guessed in a batch, and how many guesses that are.

        A sum, so that micro-batches and processes with more to guess count more, as in one large batch.
        """
        raise NotImplementedError

    def score(self, model: torch.nn.Module, batches: Iterable[Tensors]) -> Score:
        """How good the model is. The mean loss, unless a recipe has more to say."""
        return Score(self.mean_loss(model, batches))

    def mean_loss(self, model: torch.nn.Module, batches: Iterable[Tensors]) -> float:
        """The mean loss over some batches."""
        total, count = 0.0, 0.0
        for batch in batches:
            loss, guesses = self.loss(model, batch)
            total, count = total + loss.item(), count + float(guesses)
        return total / max(count, 1.0)

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        """Writes the model as others load it. `weights`: gathered from several processes, where that was necessary."""
        raise NotImplementedError

    def checkpoint_activations(self) -> bool:
        """Has activations computed again instead of kept. Whether it can."""
        enable = getattr(self.model, "gradient_checkpointing_enable", None)
        if enable is None:
            return False
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # transformers would say at length that both do not go together.
        self.model.config.use_cache = False  # type: ignore[union-attr]
        return True

    def pass_on(self, folder: Path) -> None:
        """Copies what belongs to the model and is not its own to write."""
        for name, content in self._others.items():
            if not (folder / name).exists():
                (folder / name).write_bytes(content)

    def tokenizer_file(self, text: str) -> Path:
        """A `tokenizer.json` where the engine can read it. Every process may write it, so it appears at once."""
        file = self.settings.output_dir / "tokenizer.json"
        unfinished = file.with_name(f".tokenizer-{os.getpid()}.json")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
        return file

    def data(self) -> tuple[Pipeline, Pipeline]:
        """What is learned from, and what the model is tried on."""
        path, tried = self.settings.data_dir, self.settings.eval_data
        learned = open(path) if tried is not None else open(path).without_held_out()
        held = open(path).held_out() if tried is None else open(tried)
        return self.pipeline(learned, learning=True), self.pipeline(held, learning=False)


def rows_of(batch: Tensors, begin: int, end: int) -> Tensors:
    """Some rows of a batch."""
    count = rows_in(batch)
    about = {
        name: value[begin:end] if isinstance(value, (list, tuple, torch.Tensor)) and len(value) == count else value
        for name, value in batch.about.items()
    }
    if isinstance(texts := about.get("texts"), dict):
        about["texts"] = {name: values[begin:end] for name, values in texts.items()}
    return Batch({name: tensor[begin:end] for name, tensor in batch.items()}, about)


def only(batch: Tensors, valid: list[bool]) -> Tensors:
    """A batch without its holes."""
    wanted = [at for at, there in enumerate(valid) if there]
    kept = rows_of(batch, 0, rows_in(batch))
    rows = torch.tensor(wanted)
    about: dict[str, Any] = {}
    for name, value in kept.about.items():
        if isinstance(value, (list, tuple)) and len(value) == len(valid):
            about[name] = [value[at] for at in wanted]
        elif name == "texts":
            about[name] = {field: [texts[at] for at in wanted] for field, texts in value.items()}
        else:
            about[name] = value
    return Batch({name: tensor[rows.to(tensor.device)] for name, tensor in kept.items()}, about)


def rows_in(batch: Tensors) -> int:
    """How many rows a batch has."""
    return next((len(tensor) for tensor in batch.values()), 0)


def parts_of(batch: Tensors, parts: int) -> Iterator[Tensors]:
    """A batch in so many parts of about the same size."""
    rows = rows_in(batch)
    size = max(-(-rows // parts), 1)
    for begin in range(0, rows, size):
        yield rows_of(batch, begin, min(begin + size, rows))


def masked(features: torch.Tensor, lengths: torch.Tensor, masks: int, generator: torch.Generator | None) -> torch.Tensor:
    """Features `[rows, …, frames]` with some stretches of time, each up to a twentieth of a row, set to zero."""
    frames = torch.arange(features.shape[-1], device=features.device)
    for _ in range(masks):
        drawn = torch.rand(2, len(features), generator=generator, device=features.device)
        wide = drawn[0] * 0.05 * lengths
        first = drawn[1] * (lengths - wide)
        inside = (frames >= first[:, None]) & (frames < (first + wide)[:, None])
        features = features.masked_fill(inside.view(len(features), *[1] * (features.dim() - 2), -1), 0.0)
    return features


def noisy(features: torch.Tensor, deviation: float, generator: torch.Generator | None) -> torch.Tensor:
    """Features with white noise on them."""
    noise = torch.randn(features.shape, generator=generator, device=features.device, dtype=features.dtype)
    return features.add_(noise, alpha=deviation)


def model_folder(name: str) -> Path:
    """A folder on this machine with a model: that one, a run's best checkpoint, or one from the hub."""
    folder = Path(name)
    if folder.is_dir():
        return model_in(folder)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise Wrong(
            f"there is no folder `{name}`",
            "a folder on this machine, or a name on the hub: --model openai/whisper-tiny",
        )
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.txt", "*.model", "model*.safetensors"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Wrong(
            f"`{name}` is no folder here and could not be fetched from the hub: {reason}",
            f"where there is a network, `hf download {name} --local-dir {name.split('/')[-1]}`; then --model {name.split('/')[-1]}",
        ) from error


def model_in(folder: Path) -> Path:
    """The folder with the weights: itself, or the best checkpoint of a run."""
    if (folder / "config.json").is_file():
        return folder
    best = _core.Checkpoints(folder / "checkpoints").best()
    if best is not None:
        return Path(best)
    raise Wrong(f"`{folder}` has no config.json", "a folder in Hugging Face's format, or a run's --output-dir")

