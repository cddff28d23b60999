"""Is the native trainer PyTorch's equal? The same model, the same batches, the same numbers."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperForConditionalGeneration

BUILT = Path(os.environ.get("FEEDWATER_BUILT", Path(__file__).parents[2] / "target" / "release"))
LETTERS = " ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/=?.,()-+\"':@;!&_$"
STEPS = 20
RATE, WARM_UP = 1e-3, 5


def native(program: str, *arguments: object) -> str:
    path = BUILT / (program if os.name != "nt" else f"{program}.exe")
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def compute(*arguments: object) -> str:
    return native("examples/compute", *arguments)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native") / "morse"
    native("feedwater", "generate", "morse", "--out", folder, "--clips", 80, "--max-seconds", 4)
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper checkpoint, random, as transformers writes it."""
    folder = tmp_path_factory.mktemp("whisper")
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|unknown|>"]
    vocabulary = {name: at for at, name in enumerate([*special, *LETTERS])}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    letters.normalizer = normalizers.Strip()  # type: ignore[assignment]
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    letters.add_special_tokens(special[:3])
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<|endoftext|>").save_pretrained(folder)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(vocabulary),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=200,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        init_std=0.2,
    )
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    return folder


def loaded(folder: Path) -> WhisperForConditionalGeneration:
    model, report = WhisperForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    assert isinstance(model, WhisperForConditionalGeneration)
    return model


def same_logits(folder: Path, data: Path, out: Path) -> None:
    compute("batches", folder, data, out, 1, 8)
    found = load_file(out)
    with torch.no_grad():
        theirs = loaded(folder).eval()(input_features=found["0.features"], labels=found["0.labels"].long()).logits
    ours = found["logits"].reshape(theirs.shape)
    assert (ours - theirs).abs().max() < 1e-4
    assert theirs.abs().max() > 0.1


def test_a_whisper_checkpoint_goes_there_and_back(whisper: Path, data: Path, tmp_path: Path) -> None:
    same_logits(whisper, data, tmp_path / "before.safetensors")
    run = tmp_path / "run"
    native(
        "feedwater", "train", "whisper", "--engine", "native", "--data-dir", data, "--eval-data", data, "--model", whisper,
        "--output-dir", run, "--max-steps", 6, "--warmup-steps", 0, "--learning-rate", 1e-3, "--json",
    )
    model = run / "checkpoints" / "step-00000006"
    same_logits(model, data, tmp_path / "after.safetensors")
    before, after = load_file(whisper / "model.safetensors"), load_file(model / "model.safetensors")
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    # transformers leaves the places of the encoder as they are.
    assert before.keys() - moved == {"model.encoder.embed_positions.weight"}
    said = native("feedwater", "transcribe", run, *sorted((data / "train").glob("*.wav"))[:3])
    assert len(said.splitlines()) == 3


def schedule(step: int) -> float:
    if step < WARM_UP:
        return step / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP)))


def torch_losses(model: torch.nn.Module, batches: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for step, loss_of in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = RATE * schedule(step)
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def native_losses(recipe: str, model: Path, data: Path, run: Path, batch_size: int) -> list[float]:
    native(
        "feedwater", "train", recipe, "--engine", "native", "--data-dir", data, "--eval-data", data, "--model", model, "--output-dir", run,
        "--max-steps", STEPS, "--warmup-steps", WARM_UP, "--learning-rate", RATE, "--batch-size", batch_size, "--json",
    )
    lines = map(json.loads, (run / "record.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "step" in line]


def close(ours: list[float], theirs: list[float]) -> None:
    assert len(ours) == len(theirs) == STEPS
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == pytest.approx(other, rel=1e-3), f"step {step}: {ours} {theirs}"


def test_the_first_losses_of_whisper_are_those_of_pytorch(whisper: Path, data: Path, tmp_path: Path) -> None:
    ours = native_losses("whisper", whisper, data, tmp_path / "run", 4)
    compute("batches", whisper, data, tmp_path / "batches.safetensors", STEPS, 4)
    found = load_file(tmp_path / "batches.safetensors")
    model = loaded(whisper).train()

    def losses() -> Any:
        for at in range(STEPS):
            features, labels = found[f"{at}.features"], found[f"{at}.labels"].long()
            yield lambda: model(input_features=features, labels=labels).loss

    close(ours, torch_losses(model, losses()))
    assert ours[-1] < 0.8 * ours[0]


class CnnLstm(torch.nn.Module):
    """The model of the recipe, of PyTorch's own layers."""

    def __init__(self, classes: int, channels: int = 16, hidden: int = 24) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv1d(9, channels, 5, stride=2, padding=2)
        self.conv2 = torch.nn.Conv1d(channels, channels, 5, stride=2, padding=2)
        self.lstm = torch.nn.LSTM(channels, hidden, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(2 * hidden, classes)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for conv in (self.conv1, self.conv2):
            lengths = (lengths + 1) // 2
            x = conv(x).relu()
            x = x * (torch.arange(x.shape[2]) < lengths[:, None])[:, None]
        x = x.transpose(1, 2)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = torch.nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.head(out), lengths


def around_the_tone(features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The mel bins around the one that changes most, as the recipe describes it."""
    around = np.zeros((len(features), 9, features.shape[2]))
    for row, (bins, length) in enumerate(zip(features.double().numpy(), lengths.int().tolist(), strict=True)):
        bins = bins[:, :length]
        tone = int(bins.var(axis=1).argmax())
        for place in range(9):
            at = tone + place - 4
            if 0 <= at < len(bins):
                around[row, place, :length] = (bins[at] - bins[at].mean()) / max(bins[tone].std(), 1e-5)
    return torch.from_numpy(around).float()


def test_the_first_losses_of_the_cnn_lstm_are_those_of_pytorch(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    names = ["<blank>", "<unknown>", *LETTERS]
    torch.manual_seed(0)
    model = CnnLstm(len(names))
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    task = {"transcribe": len(names)}
    config = {"model_type": "feedwater-cnn-lstm", "bins": 80, "channels": 16, "hidden": 24, "task": task}
    (folder / "config.json").write_text(json.dumps(config))
    letters = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unknown>"))
    letters.save(str(folder / "tokenizer.json"))

    ours = native_losses("cnn-lstm", folder, data, tmp_path / "run", 4)
    compute("batches", folder, data, tmp_path / "batches.safetensors", STEPS, 4)
    found = load_file(tmp_path / "batches.safetensors")

    def loss(at: int) -> torch.Tensor:
        frames = found[f"{at}.feature_lengths"].long()
        logits, lengths = model(around_the_tone(found[f"{at}.features"], frames), frames)
        labels, counts = found[f"{at}.labels"].long().clamp(min=0), found[f"{at}.label_lengths"].long()
        log = logits.log_softmax(2).transpose(0, 1)
        return torch.nn.functional.ctc_loss(log, labels, lengths, counts, zero_infinity=True)

    with torch.no_grad():
        frames = found["0.feature_lengths"].long()
        logits, lengths = model(around_the_tone(found["0.features"], frames), frames)
    for row, length in enumerate(lengths.tolist()):
        native_row = found["logits"].reshape(logits.shape)[row, :length]
        assert (native_row - logits[row, :length]).abs().max() < 1e-4
    close(ours, torch_losses(model, (lambda at=at: loss(at) for at in range(STEPS))))


def test_error_rates_are_those_of_jiwer(tmp_path: Path) -> None:
    dice = random.Random(3)
    words = ["cq", "de", "rst", "599", "tnx", "fer", "73"]
    pairs = []
    for _ in range(60):
        right = [dice.choice(words) for _ in range(dice.randint(1, 9))]
        heard = [dice.choice([word, word, word + "x", dice.choice(words), ""]) for word in right]
        pairs.append((" ".join(right), " ".join(filter(None, heard))))
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    rates = [float(rate) for rate in compute("rates", tmp_path / "pairs.json").split()]
    right, heard = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert rates == pytest.approx([jiwer.cer(right, heard), jiwer.wer(right, heard)], abs=1e-12)
