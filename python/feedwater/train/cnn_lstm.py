"""Convolutions over time, a layer that reads forwards and backwards, and a head: the native recipe's model, of PyTorch's layers.

Sound is transcribed with a CTC head; arrays are classified, after encoder epochs in which hidden spans are guessed. Weights
have the same names in both engines, so a model trained here is used by `feedwater transcribe`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from feedwater import _core
from feedwater.pipeline import Pipeline, open
from feedwater.train.checkpoints import read_weights
from feedwater.train.loop import Summary, finish, run
from feedwater.train.recipe import Recipe, Score, Tensors, masked, model_folder, noisy
from feedwater.train.settings import Settings, Wrong

MODEL_TYPE = "feedwater-cnn-lstm"
STRIDE, KERNEL = 2, 5
# Mel bins around the tone.
WINDOW = 9
# Frames of the recurrent layer that are hidden at a time, and the share of such spans.
SPAN, HIDDEN_SHARE = 4, 1 / 3


def train(settings: Settings) -> int:
    """Trains: for arrays an encoder first, then a classifier. The exit code."""
    summaries: list[Summary] = []
    learned = None
    if settings.encoder_epochs > 0 and settings.model is None and _columns(settings) is not None:
        folder = settings.output_dir / "encoder"
        first = settings.replaced(output_dir=folder, num_epochs=settings.encoder_epochs, max_steps=None)
        summaries.append(run(first, lambda found: make(first, found, encoder=True)))
        if summaries[0].ended == "asked":
            return finish(settings, summaries)
        learned = summaries[0].model
    summaries.append(run(settings, lambda found: make(settings, found, learned=learned)))
    return finish(settings, summaries)


def make(settings: Settings, found: Path | None, *, encoder: bool = False, learned: Path | None = None) -> CnnLstm:
    """The model of a checkpoint or a folder, or a new one; `learned` is an encoder to begin with."""
    folder = found if found is not None else model_folder(settings.model) if settings.model else None
    if folder is not None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config.get("model_type") != MODEL_TYPE:
            raise Wrong(f"`{folder}` is a model of type {config.get('model_type')}", "one that `train cnn-lstm` made")
        text = (folder / "tokenizer.json").read_text(encoding="utf-8") if "transcribe" in _task(config) else None
    else:
        config, text = _new(settings, encoder=encoder)
    module = Module(config)
    if folder is not None:
        module.load_state_dict(read_weights(folder))
    elif learned is not None:
        module.load_state_dict(read_weights(learned), strict=False)
    return CnnLstm(settings, module, folder, text)


def _new(settings: Settings, *, encoder: bool) -> tuple[dict[str, Any], str | None]:
    columns = _columns(settings)
    fits = "transcribe" if columns is None else "classify"
    if settings.task not in (None, fits):
        has = "sound" if columns is None else "arrays"
        raise Wrong(f"the data is {has}, which is not for that task", f"--task {fits}, or leave it out")
    config = {"model_type": MODEL_TYPE, "bins": columns or 80, "channels": settings.channels, "hidden": settings.hidden}
    if columns is None:
        text = _core.letters(settings.data_dir, [])
        return {**config, "task": {"transcribe": Tokenizer.from_str(text).get_vocab_size()}}, text
    if encoder:
        return {**config, "task": "reconstruct"}, None
    return {**config, "task": {"classify": _classes(settings)}}, None


def _columns(settings: Settings) -> int | None:
    """The columns of the arrays of the dataset; nothing where it has sound."""
    try:
        loader = open(settings.data_dir).decode("npy").batch(1).shuffle(False).ranks(0, 1).threads(1).policy("skip", ceiling=1.0)
        first = next(batch for batch in loader.numpy() if "input_features" in batch)
    except ValueError as error:
        if "audio" in str(error) or "sound" in str(error):
            return None
        raise
    return int(first["input_features"].shape[-1])


def _classes(settings: Settings) -> list[str]:
    loader = open(settings.data_dir).decode("npy").batch(1).ranks(0, 1).numpy()
    if loader.classes:
        return loader.classes
    labels = [batch["labels"].max() for batch in loader if "labels" in batch]
    if not labels:
        raise Wrong("the samples have no labels to learn", "a folder for each class, or a `label` in the metadata")
    return [str(label) for label in range(int(max(labels)) + 1)]


def _task(config: dict[str, Any]) -> dict[str, Any]:
    return config["task"] if isinstance(config["task"], dict) else {config["task"]: None}


class Module(torch.nn.Module):
    """The layers."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        [(self.task, about)] = _task(config).items()
        channels, hidden = config["channels"], config["hidden"]
        inputs = WINDOW if self.task == "transcribe" else config["bins"]
        self.conv1 = torch.nn.Conv1d(inputs, channels, KERNEL, stride=STRIDE, padding=KERNEL // 2)
        self.conv2 = torch.nn.Conv1d(channels, channels, KERNEL, stride=STRIDE, padding=KERNEL // 2)
        self.lstm = torch.nn.LSTM(channels, hidden, batch_first=True, bidirectional=True)
        if self.task == "reconstruct":
            self.decoder = torch.nn.Linear(2 * hidden, config["bins"])
        else:
            self.head = torch.nn.Linear(2 * hidden, about if self.task == "transcribe" else len(about))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Of features `[rows, inputs, frames]`: what the head says of each frame, or of each row where it classifies."""
        for conv in (self.conv1, self.conv2):
            lengths = left(lengths, 1)
            x = conv(x).relu()
            # Behind its end a row is zeros again: the next layer looks a little beyond.
            x = x * (torch.arange(x.shape[2], device=x.device) < lengths[:, None])[:, None]
        # What it adds up over time it adds up exactly: cuDNN would take f16 where bf16 is meant.
        with torch.autocast(x.device.type, enabled=False):
            exact = x.float().transpose(1, 2)
            packed = pack_padded_sequence(exact, lengths.cpu(), batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[2])
        if self.task == "reconstruct":
            return self.decoder(out)  # type: ignore[no-any-return]
        if self.task == "classify":
            out = out.sum(1) / lengths[:, None]
        return self.head(out)  # type: ignore[no-any-return]


def left(lengths: torch.Tensor, layers: int = 2) -> torch.Tensor:
    """How many frames are left of this many."""
    for _ in range(layers):
        lengths = (lengths + STRIDE - 1) // STRIDE
    return lengths


class CnnLstm(Recipe):
    """The model with what becomes of its data."""

    name = "cnn-lstm"
    learning_rate = 3e-3

    model: Module

    def __init__(self, settings: Settings, model: Module, folder: Path | None, text: str | None) -> None:
        super().__init__(settings, model, folder)
        self.task, self.text = model.task, text
        if text is not None:
            self.tokenizer = Tokenizer.from_str(text)

    def checkpoint_activations(self) -> bool:
        """There are two layers, of which cuDNN keeps what it needs."""
        return False

    def pipeline(self, data: Pipeline, *, learning: bool) -> Pipeline:
        """Sound to features and letters, or arrays as they are."""
        if self.text is not None:
            flow = data.decode(16_000).log_mel(80, pad_seconds=None).tokenize(self.tokenizer_file(self.text))
        else:
            flow = data.decode("npy")
        host = learning and self.settings.augment_on == "host"
        if host and self.settings.noise is not None:
            flow = flow.noise(deviation=self.settings.noise)
        if host and self.settings.time_masks:
            flow = flow.spec_augment(time=(self.settings.time_masks, 0.05))
        if self.settings.enable_static_shapes:
            return flow.batch(1, pad=64)
        return flow.batch(1, buckets=8)

    def prepare(self, batch: Tensors, *, learning: bool, generator: torch.Generator | None) -> Tensors:
        """Features `[rows, inputs, frames]`, even and with a deviation of 1; what is to be guessed of them is hidden."""
        features = batch["input_features"]
        lengths = torch.tensor(batch["lengths"], device=features.device).clamp(min=1)
        if self.text is None:
            features = features.transpose(1, 2)
            if features.shape[1] != self.model.config["bins"]:
                bins = self.model.config["bins"]
                raise Wrong(f"a sample has {features.shape[1]} columns, and the model is for {bins}", "all have the same number")
        there = torch.arange(features.shape[2], device=features.device) < lengths[:, None]
        device = learning and self.settings.augment_on == "device"
        if device and self.settings.noise is not None:
            features = noisy(features.clone(), self.settings.noise, generator)
        features = around_the_tone(features, there) if self.text is not None else level(features, there)
        if device:
            features = masked(features, lengths, self.settings.time_masks, generator)
        tensors = {"lengths": lengths}
        if self.task == "reconstruct":
            features, tensors["right"], tensors["counted"] = hide(features, lengths, batch)
        if "labels" in batch:
            tensors["labels"] = batch["labels"]
        if "label_lengths" in batch.about:
            tensors["label_lengths"] = torch.tensor(batch["label_lengths"], device=features.device)
        return type(batch)({"features": features, **tensors}, batch.about)

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """CTC, the square of what was guessed wrong, or cross entropy."""
        out = model(batch["features"], batch["lengths"]).float()
        if self.task == "reconstruct":
            counted = batch["counted"]
            return ((out - batch["right"]).square() * counted[..., None]).sum(), counted.sum() * out.shape[2]
        if self.task == "classify":
            labels = batch["labels"].flatten().long()
            return torch.nn.functional.cross_entropy(out, labels, reduction="sum"), torch.tensor(len(labels))
        labels, counts = batch["labels"].clamp(min=0), batch["label_lengths"]
        log = out.log_softmax(2).transpose(0, 1)
        lengths = left(batch["lengths"])
        each = torch.nn.functional.ctc_loss(log, labels, lengths, counts, reduction="none", zero_infinity=True)
        # As torch's mean has it: each row by its own length.
        return (each / counts.clamp(min=1)).sum(), torch.tensor(len(labels))

    def score(self, model: torch.nn.Module, batches: Iterable[Tensors]) -> Score:
        """How many letters, words or classes are wrong."""
        total, count, wrong = 0.0, 0.0, 0
        pairs: list[tuple[str, str]] = []
        for batch in batches:
            loss, guesses = self.loss(model, batch)
            total, count = total + loss.item(), count + float(guesses)
            if self.task == "reconstruct":
                continue
            best = model(batch["features"], batch["lengths"]).argmax(-1)
            if self.task == "classify":
                wrong += int((best != batch["labels"].flatten()).sum())
                continue
            right = [[letter for letter in row if letter >= 0] for row in batch["labels"].tolist()]
            heard = [greedy(row[:length]) for row, length in zip(best.tolist(), left(batch["lengths"]).tolist(), strict=True)]
            pairs += zip(self.said(right), self.said(heard), strict=True)
        shares = {"error": wrong / max(count, 1)} if self.task == "classify" else {}
        if pairs:
            shares = dict(zip(("cer", "wer"), _core.error_rates(pairs), strict=True))
        return Score(total / max(count, 1.0), shares)

    def said(self, rows: list[list[int]]) -> list[str]:
        """Letters as text."""
        return ["".join(self.tokenizer.id_to_token(letter) or "" for letter in row if letter > 1) for row in rows]

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        """Writes what `feedwater transcribe` and the native trainer load."""
        weights = weights if weights is not None else self.model.state_dict()
        whole = {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.model.config, indent=2), encoding="utf-8")
        if self.text is not None:
            (folder / "tokenizer.json").write_text(self.text, encoding="utf-8")


def greedy(frames: list[int]) -> list[int]:
    """The letters of a row of frames: what is repeated counts once, and blanks not at all."""
    return [letter for at, letter in enumerate(frames) if letter and (at == 0 or frames[at - 1] != letter)]


def around_the_tone(features: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Of mel bins `[rows, bins, frames]`, the one that changes most and those beside it, each less what it has all the time,
    with the deviation of the first. So a tone looks the same whatever its pitch, its strength and the noise."""
    rows, bins, _ = features.shape
    inside = there[:, None].double()
    count = inside.sum(2, keepdim=True)
    exact = features.double()
    mean = (exact * inside).sum(2, keepdim=True) / count
    even = (exact - mean) * inside
    variance = even.square().sum(2) / count[:, 0]
    tone = variance.argmax(1)
    scale = variance.gather(1, tone[:, None]).sqrt().clamp(min=1e-5)
    at = tone[:, None] + torch.arange(WINDOW, device=features.device) - WINDOW // 2
    known = (at >= 0) & (at < bins)
    around = even.gather(1, at.clamp(0, bins - 1)[..., None].expand(rows, WINDOW, even.shape[2]))
    return (around * known[..., None] / scale[..., None]).float()


def level(features: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Arrays `[rows, columns, frames]`, each less its mean and with a deviation of 1. Padding is zero."""
    inside = there[:, None].to(features.dtype)
    count = inside.sum((1, 2), keepdim=True) * features.shape[1]
    mean = (features * inside).sum((1, 2), keepdim=True) / count
    even = (features - mean) * inside
    return even / (even.square().sum((1, 2), keepdim=True) / count).sqrt().clamp(min=1e-5)


def hide(
    features: torch.Tensor, lengths: torch.Tensor, batch: Tensors
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hides spans of features: what is left, the mean of what was there a frame of the recurrent layer, and where."""
    rows, bins, frames = features.shape
    stride = STRIDE * STRIDE
    steps = -(-frames // stride)
    generator = torch.Generator().manual_seed(int(batch["epoch"]) * 1_000_003 + int(batch["step"]))
    spans = torch.rand(rows, -(-steps // SPAN), generator=generator) < HIDDEN_SHARE
    counted = spans.repeat_interleave(SPAN, 1)[:, :steps].to(features.device)
    counted &= torch.arange(steps, device=features.device) < left(lengths)[:, None]
    padded = torch.nn.functional.pad(features, (0, steps * stride - frames)).view(rows, bins, steps, stride)
    place = torch.arange(steps * stride, device=features.device).view(steps, stride)
    seen = (place < lengths[:, None, None]).sum(2).clamp(min=1)
    right = (padded.sum(3) / seen[:, None]).transpose(1, 2)
    kept = ~counted.repeat_interleave(stride, 1)[:, :frames]
    return features * kept[:, None], right, counted
