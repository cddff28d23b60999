"""Data that the tests share: made once, by the command that the wheel brings along."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]


def pytest_configure() -> None:
    """Ctrl-C is heard in what tests start, also where they run in the background of a shell, which has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """A program of this Python, with its output."""
    line = [sys.executable, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="session")
def morse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """43 short clips with their texts: a number that no batch size here divides."""
    folder = tmp_path_factory.mktemp("data") / "morse"
    made = run("-m", "feedwater", "generate", "morse", "--clips", "43", "--out", folder)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def tokenizer(morse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE that has Whisper's special tokens."""
    lines = (morse / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    folder = tmp_path_factory.mktemp("model")
    bpe.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 `.npy` files of different lengths, in a folder for each of two classes."""
    folder = tmp_path_factory.mktemp("arrays")
    random = numpy.random.default_rng(7)
    for number in range(30):
        place = folder / ("even" if number % 2 == 0 else "odd")
        place.mkdir(exist_ok=True)
        numpy.save(place / f"{number:03}.npy", random.standard_normal((20 + number, 16), dtype=numpy.float32))
    return folder


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of documents, a JSON line each."""
    path = tmp_path_factory.mktemp("text") / "documents.jsonl"
    words = "cq de test signal report five nine name is".split()
    random = numpy.random.default_rng(3)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(120):
            text = " ".join(random.choice(words, size=random.integers(3, 40)))
            file.write(json.dumps({"text": text}) + "\n")
    return path
