"""Whisper: transformers' model, from a folder, the hub or new; saved so that `pipeline("automatic-speech-recognition")` loads it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from feedwater import _core
from feedwater.pipeline import Pipeline
from feedwater.train.checkpoints import read_weights
from feedwater.train.loop import finish, run
from feedwater.train.recipe import Recipe, Score, Tensors, masked, model_folder, noisy
from feedwater.train.settings import Settings, Wrong

SPECIAL = END, START, NO_TIMES = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
# Width, layers and heads, as in the paper.
SIZES = {"tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12), "medium": (1024, 24, 16), "large": (1280, 32, 20)}
# Places of the encoder in a second: two frames each.
PLACES_A_SECOND = 50


def train(settings: Settings) -> int:
    """Trains Whisper. The exit code."""
    return finish(settings, [run(settings, lambda found: make(settings, found))])


def make(settings: Settings, found: Path | None) -> Whisper:
    """The model of a checkpoint, of a folder or the hub, or a new one."""
    folder = found if found is not None else model_folder(settings.model) if settings.model else None
    if folder is None:
        return new(settings)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise Wrong(f"`{folder}` has no tokenizer.json", "`hf download` fetches it with the model")
    # What is not a number would be learned from without a word.
    read_weights(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return Whisper(settings, model, folder, tokenizer.read_text(encoding="utf-8"))


def new(settings: Settings) -> Whisper:
    """A new model, with a tokenizer or with a token for each byte, so that it can say anything."""
    # Is there any text to learn?
    _core.letters(settings.data_dir, [])
    text = _core.byte_tokens(list(SPECIAL))
    if settings.tokenizer is not None:
        text = settings.tokenizer.read_text(encoding="utf-8")
    known = Tokenizer.from_str(text)
    start, end = (_id(known, token, settings.tokenizer) for token in (START, END))
    width, layers, heads = SIZES[settings.model_size]
    config = WhisperConfig(
        vocab_size=known.get_vocab_size(), d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        max_source_positions=settings.max_seconds * PLACES_A_SECOND, decoder_start_token_id=start,
        bos_token_id=end, eos_token_id=end, pad_token_id=end, suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    return Whisper(settings, WhisperForConditionalGeneration(config), None, text)


def _id(tokenizer: Tokenizer, token: str, where: object) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise Wrong(f"the tokenizer `{where}` has no {token}", "one of a Whisper model: the tokenizer.json beside it")
    return int(found)


class Whisper(Recipe):
    """Sound to text, by an encoder and a decoder."""

    name = "whisper"
    learning_rate = 1e-4
    recomputes = True
    others = (
        "preprocessor_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "normalizer.json",
        "vocab.json",
        "merges.txt",
    )

    model: WhisperForConditionalGeneration

    def __init__(self, settings: Settings, model: WhisperForConditionalGeneration, folder: Path | None, text: str) -> None:
        super().__init__(settings, model, folder)
        self.text = text
        self.tokenizer = Tokenizer.from_str(text)
        config = model.config
        if self.tokenizer.get_vocab_size() > config.vocab_size or _id(self.tokenizer, START, folder) != config.decoder_start_token_id:
            raise Wrong(
                f"the tokenizer has {self.tokenizer.get_vocab_size()} tokens and begins with {self.tokenizer.token_to_id(START)}, "
                f"the model {config.vocab_size} and {config.decoder_start_token_id}: they do not belong together",
                "tokenizer.json and model.safetensors of the same folder",
            )
        self.prefix = [NO_TIMES] if self.tokenizer.token_to_id(NO_TIMES) is not None else []
        if settings.language is not None:
            self.prefix = [f"<|{settings.language}|>", "<|transcribe|>", *self.prefix]
            for token in self.prefix:
                _id(self.tokenizer, token, folder)
        elif self.tokenizer.token_to_id("<|transcribe|>") is not None:
            raise Wrong("the model knows several languages, and is to be told which", "--language en, for example")
        self.end = _id(self.tokenizer, END, folder)
        self.seconds = config.max_source_positions / PLACES_A_SECOND
        # transformers leaves the places of the encoder as they are.
        model.model.encoder.embed_positions.requires_grad_(False)

    def pipeline(self, data: Pipeline, *, learning: bool) -> Pipeline:
        """Sound to features of the length that the model hears, texts to tokens."""
        flow = data.decode(16_000)
        if self.settings.use_chunking:
            flow = flow.chunk(self.seconds, without_times="truncate")
        else:
            flow = flow.longest(self.seconds)
        flow = flow.log_mel(self.model.config.num_mel_bins, pad_seconds=self.seconds)
        if learning and self.settings.augment_on == "host":
            if self.settings.noise is not None:
                flow = flow.noise(deviation=self.settings.noise)
            if self.settings.time_masks:
                flow = flow.spec_augment(time=(self.settings.time_masks, 0.05))
        most = self.model.config.max_target_positions
        flow = flow.tokenize(self.tokenizer_file(self.text), prefix=self.prefix, suffix=[END], max_tokens=most)
        return flow.batch(1)

    def prepare(self, batch: Tensors, *, learning: bool, generator: torch.Generator | None) -> Tensors:
        """Noise and masks on the device, where that was asked for."""
        if learning and self.settings.augment_on == "device":
            features = batch["input_features"]
            if self.settings.noise is not None:
                features = noisy(features, self.settings.noise, generator)
            lengths = torch.tensor(batch["lengths"], device=features.device)
            batch["input_features"] = masked(features, lengths, self.settings.time_masks, generator)
        return batch

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross entropy of each token that is to be said."""
        labels = batch["labels"]
        logits = model(input_features=batch["input_features"], labels=labels, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
        return loss, (labels != -100).sum()

    def score(self, model: torch.nn.Module, batches: Iterable[Tensors]) -> Score:
        """Character and word error rates of what it says, decoded greedily."""
        total, count = 0.0, 0
        pairs: list[tuple[str, str]] = []
        for batch in batches:
            loss, guesses = self.loss(model, batch)
            total, count = total + loss.item(), count + int(guesses)
            right = [[token for token in row if token >= 0] for row in batch["labels"].tolist()]
            heard = self.greedy(model, batch["input_features"], max(map(len, right)) + 16)
            pairs += zip(self.said(right), self.said(heard), strict=True)
        cer, wer = _core.error_rates(pairs)
        return Score(total / max(count, 1), {"cer": cer, "wer": wer})

    def said(self, rows: list[list[int]]) -> list[str]:
        """Tokens as text."""
        return [text.strip() for text in self.tokenizer.decode_batch(rows, skip_special_tokens=True)]

    def greedy(self, model: torch.nn.Module, features: torch.Tensor, most: int) -> list[list[int]]:
        """The likeliest token, one after the other, with the keys and values of those before kept."""
        first = [self.model.config.decoder_start_token_id, *(_id(self.tokenizer, token, None) for token in self.prefix)]
        said = torch.tensor([first] * len(features), device=features.device)
        state = {"encoder_outputs": self.model.get_encoder()(features), "past_key_values": None}
        given, done = said, torch.zeros(len(features), dtype=torch.bool, device=features.device)
        for _ in range(min(most, self.model.config.max_target_positions - len(first))):
            out = model(decoder_input_ids=given, use_cache=True, **state)
            state["past_key_values"] = out.past_key_values
            given = torch.where(done, self.end, out.logits[:, -1].argmax(-1))[:, None]
            said = torch.cat([said, given], 1)
            done |= given[:, 0] == self.end
            if bool(done.all()):
                break
        return [row[len(first) :] for row in said.tolist()]

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        """Writes all that transformers' pipeline loads."""
        self.model.save_pretrained(folder, state_dict=weights)
        (folder / "tokenizer.json").write_text(self.text, encoding="utf-8")
        self.pass_on(folder)
        if not (folder / "preprocessor_config.json").exists():
            seconds = round(self.seconds)
            extractor = WhisperFeatureExtractor(self.model.config.num_mel_bins, chunk_length=seconds)  # type: ignore[no-untyped-call]
            extractor.save_pretrained(folder)
        if not (folder / "tokenizer_config.json").exists():
            about: dict[str, object] = {"tokenizer_class": "WhisperTokenizer", "additional_special_tokens": [START, NO_TIMES]}
            about |= {"bos_token": END, "eos_token": END, "unk_token": END, "pad_token": END}
            (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
