"""Text to mel: a compact model without attention, on sound with texts (LJSpeech and the like).

Letters are encoded; each is given a length; what is known of the letters is spread over time by bells around their middles,
as wide as is learned; convolutions make mel frames of it. Lengths need no alignment: in training they are scaled to the clip's,
and moving a letter's bell makes the frames better or worse, which is a gradient.

With two devices, sound goes to the data's: features are made there while the model's device trains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers.audio_utils import mel_filter_bank

from feedwater import _core
from feedwater.pipeline import Pipeline
from feedwater.train.checkpoints import read_weights
from feedwater.train.loop import finish, run
from feedwater.train.recipe import Recipe, Score, Tensors, masked, model_folder, noisy
from feedwater.train.settings import Settings, Wrong

MODEL_TYPE = "feedwater-tts"
# Width, and blocks of the encoder and of the decoder.
SIZES = {"tiny": (96, 2, 3), "base": (192, 3, 4), "small": (256, 4, 6), "medium": (384, 6, 8), "large": (512, 8, 12)}
BINS, RATE, FRAMES_A_SECOND, WINDOW, HOP = 80, 16_000, 100, 400, 160


def train(settings: Settings) -> int:
    """Trains a text-to-mel model. The exit code."""
    return finish(settings, [run(settings, lambda found: make(settings, found))])


def make(settings: Settings, found: Path | None) -> Tts:
    """The model of a checkpoint or a folder, or a new one."""
    folder = found if found is not None else model_folder(settings.model) if settings.model else None
    if folder is None:
        text = _core.letters(settings.data_dir, ["<|pad|>"])
        width, encoder, decoder = SIZES[settings.model_size]
        letters = Tokenizer.from_str(text).get_vocab_size()
        config = {"model_type": MODEL_TYPE, "letters": letters, "width": width, "encoder": encoder, "decoder": decoder}
        return Tts(settings, Module(config), None, text)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != MODEL_TYPE:
        raise Wrong(f"`{folder}` is a model of type {config.get('model_type')}", "one that `train tts` made")
    module = Module(config)
    module.load_state_dict(read_weights(folder))
    return Tts(settings, module, folder, (folder / "tokenizer.json").read_text(encoding="utf-8"))


class Block(torch.nn.Module):
    """A convolution over time, beside what it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.conv = torch.nn.Conv1d(width, width, 5, padding=2)
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Of `[rows, places, width]`."""
        seen = (self.norm(x) * there[..., None]).transpose(1, 2)
        changed: torch.Tensor = self.linear(torch.nn.functional.gelu(self.conv(seen).transpose(1, 2)))
        return x + changed


class Module(torch.nn.Module):
    """The layers."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        width = config["width"]
        self.letters = torch.nn.Embedding(config["letters"], width)
        self.encoder = torch.nn.ModuleList(Block(width) for _ in range(config["encoder"]))
        self.length = torch.nn.Linear(width, 1)
        # How wide a letter's bell is, in its own length.
        self.spread = torch.nn.Linear(width, 1)
        # Where in its letter a frame is, beside which letter it is.
        self.place = torch.nn.Linear(2, width)
        self.decoder = torch.nn.ModuleList(Block(width) for _ in range(config["decoder"]))
        self.mel = torch.nn.Linear(width, BINS)

    def forward(
        self, letters: torch.Tensor, counts: torch.Tensor, frames: torch.Tensor | None, most: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mel frames `[rows, most, bins]`, and how many frames each row has by itself; `frames` says how many it is to have."""
        there = torch.arange(letters.shape[1], device=letters.device) < counts[:, None]
        x = self.letters(letters)
        for block in self.encoder:
            x = block(x, there)
        lengths = torch.nn.functional.softplus(self.length(x)[..., 0].float() + 2.0) * there + 1e-4 * there
        total = lengths.sum(1)
        wanted = total if frames is None else frames
        lengths = lengths * (wanted / total)[:, None]
        middles = lengths.cumsum(1) - lengths / 2
        wide = (0.2 + torch.nn.functional.softplus(self.spread(x)[..., 0].float())) * lengths.clamp(min=0.5)
        at = torch.arange(most, device=letters.device) + 0.5
        away = (at[None, :, None] - middles[:, None]) / wide[:, None].clamp(min=1e-3)
        bells = (-away.square()).masked_fill(~there[:, None], float("-inf")).softmax(2)
        y = (bells.to(x.dtype) @ x) + self.place(torch.stack([(bells * away.clamp(-3, 3)).sum(2), at.expand(len(x), -1) / 100], 2).to(x.dtype))
        heard = at < wanted[:, None]
        for block in self.decoder:
            y = block(y, heard)
        return self.mel(y), total


class Tts(Recipe):
    """The model with what becomes of its data."""

    name = "tts"
    learning_rate = 1e-3

    model: Module

    def __init__(self, settings: Settings, model: Module, folder: Path | None, text: str) -> None:
        super().__init__(settings, model, folder)
        self.text = text
        # The cores are fastest where the device is one of them; another GPU has nothing else to do.
        self.on_device = settings.augment_on == "device" or (settings.data_gpu is not None and torch.cuda.is_available())
        self.filters = torch.from_numpy(mel_filter_bank(WINDOW // 2 + 1, BINS, 0.0, RATE / 2, RATE, "slaney", "slaney")).float()

    def pipeline(self, data: Pipeline, *, learning: bool) -> Pipeline:
        """Sound, as features or as it is, and letters."""
        seconds = self.settings.max_seconds
        flow = data.decode(RATE).longest(seconds)
        if not self.on_device:
            flow = flow.log_mel(BINS, pad_seconds=None)
            if learning and self.settings.noise is not None:
                flow = flow.noise(deviation=self.settings.noise)
        flow = flow.tokenize(self.tokenizer_file(self.text), into_field="labels")
        if self.settings.enable_static_shapes:
            most = seconds * (RATE if self.on_device else FRAMES_A_SECOND)
            return flow.batch(1, pad=[most], pad_fields={"labels": [512]})
        return flow.batch(1, buckets=8)

    def prepare(self, batch: Tensors, *, learning: bool, generator: torch.Generator | None) -> Tensors:
        """Mel frames `[rows, frames, bins]`, made here where that is the device's work; noise and masks."""
        lengths = torch.tensor(batch["lengths"])
        given = next(tensor for name, tensor in batch.items() if name != "labels")
        lengths = lengths.to(given.device)
        if self.on_device:
            features, lengths = log_mel(given, lengths, self.filters.to(given.device))
            if learning and self.settings.noise is not None:
                features = noisy(features, self.settings.noise, generator)
        else:
            features = given
        # A clip in which nothing is said is the one letter that pads.
        letters = batch["labels"] if batch["labels"].shape[1] else batch["labels"].new_zeros(len(lengths), 1)
        counts = torch.tensor(batch["label_lengths"], device=given.device).clamp(min=1)
        if learning and self.settings.time_masks:
            features = masked(features, lengths, self.settings.time_masks, generator)
        tensors = {"mel": features.transpose(1, 2), "frames": lengths, "letters": letters.clamp(min=0), "counts": counts}
        return type(batch)(tensors, batch.about)

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """How far frames are from what they should be, and lengths of clips from theirs."""
        mel, frames = batch["mel"], batch["frames"]
        guessed, total = model(batch["letters"], batch["counts"], frames.float(), mel.shape[1])
        there = torch.arange(mel.shape[1], device=mel.device) < frames[:, None]
        wrong = ((guessed.float() - mel).abs().mean(2) * there).sum()
        # Of the clip's own weight, so that long ones do not learn lengths better than frames.
        long = ((total.clamp(min=1).log() - frames.float().log()).abs() * frames).sum()
        return wrong + 0.1 * long, frames.sum()

    def score(self, model: torch.nn.Module, batches: Iterable[Tensors]) -> Score:
        """The error of frames as a share of that of the trivial guess: the mean frame of the clips themselves."""
        total, count, wrong, trivial = 0.0, 0, 0.0, 0.0
        for batch in batches:
            loss, frames = self.loss(model, batch)
            total, count = total + loss.item(), count + int(frames)
            mel, lengths = batch["mel"], batch["frames"]
            there = (torch.arange(mel.shape[1], device=mel.device) < lengths[:, None])[..., None]
            mean = (mel * there).sum((0, 1)) / there.sum()
            guessed, _ = model(batch["letters"], batch["counts"], lengths.float(), mel.shape[1])
            wrong += ((guessed.float() - mel).abs() * there).sum().item()
            trivial += ((mel - mean).abs() * there).sum().item()
        return Score(total / max(count, 1), {"of_mean_frame": wrong / max(trivial, 1e-9)})

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        """Writes the model: `feedwater.train.tts.speak` uses it."""
        weights = weights if weights is not None else self.model.state_dict()
        whole = {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.model.config, indent=2), encoding="utf-8")
        (folder / "tokenizer.json").write_text(self.text, encoding="utf-8")


def log_mel(sound: torch.Tensor, lengths: torch.Tensor, filters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whisper's features `[rows, bins, frames]` of sound `[rows, samples]`, and how many frames each row has."""
    window = torch.hann_window(WINDOW, device=sound.device)
    spectrum = torch.stft(sound.float(), WINDOW, HOP, window=window, return_complex=True)[..., :-1].abs().square()
    log = (filters.T @ spectrum).clamp(min=1e-10).log10()
    frames = (lengths // HOP).clamp(min=1)
    there = torch.arange(log.shape[2], device=sound.device) < frames[:, None]
    loudest = log.masked_fill(~there[:, None], float("-inf")).amax((1, 2), keepdim=True)
    return (torch.maximum(log, loudest - 8.0) + 4.0) / 4.0 * there[:, None], frames


def speak(folder: str | Path, text: str) -> torch.Tensor:
    """The mel frames `[bins, frames]` of a text, by a model that was trained."""
    path = model_folder(str(folder))
    module = Module(json.loads((path / "config.json").read_text(encoding="utf-8")))
    module.load_state_dict(read_weights(path))
    module.eval()
    letters = torch.tensor([Tokenizer.from_file(str(path / "tokenizer.json")).encode(text).ids])
    counts = torch.tensor([letters.shape[1]])
    with torch.no_grad():
        _, total = module(letters, counts, None, 1)
        mel: torch.Tensor = module(letters, counts, None, max(round(total.item()), 1))[0]
    return mel[0].T
