"""What do the usual models take? A pipeline for each kind, by the names of the model's own arguments.

Each gives a `Pipeline`, which can be changed before a loader is made of it: `fw.whisper(…).noise(snr_db=(5, 30)).torch()`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from feedwater.pipeline import Pipeline, open


def whisper(
    data: str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    batch_size: int = 8,
    language: str | None = None,
    task: str = "transcribe",
    chunk: bool = False,
    dtype: str = "float32",
    seed: int = 0,
) -> Pipeline:
    """What `WhisperForConditionalGeneration` takes: `input_features` of 30 s and `labels`.

    `model` is a folder on this machine (`hf download openai/whisper-tiny --local-dir …` makes one) with `tokenizer.json` and,
    if it is there, `preprocessor_config.json`; labels begin as transformers'
    `WhisperTokenizer` begins them, without the start token, which the model puts in front itself.
    `chunk=True` cuts clips over 30 s.
    """
    folder = Path(model)
    tokenizer = folder / "tokenizer.json" if folder.is_dir() else folder
    features = _json(folder / "preprocessor_config.json") if folder.is_dir() else {}
    bins = int(features.get("feature_size", 80))
    prefix = [] if language is None else [f"<|{language}|>", f"<|{task}|>"]
    prefix += ["<|notimestamps|>"]
    pipeline = open(data).decode(16_000)
    if chunk:
        pipeline = pipeline.chunk(30.0, without_times="truncate")
    return (
        pipeline.log_mel(bins)
        .tokenize(tokenizer, prefix=prefix, suffix=["<|endoftext|>"], max_tokens=448)
        .batch(batch_size, dtype=dtype)
        .seed(seed)
    )


def text(
    data: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str],
    *,
    batch_size: int = 8,
    length: int = 512,
    packed: bool = True,
    seed: int = 0,
) -> Pipeline:
    """What causal language models take: `input_ids` and `labels`, and where rows are padded, `attention_mask`.

    Documents are laid end to end in blocks of `length` tokens, without padding, and `batch["document_ids"]` says which
    token belongs to which; with `packed=False` each is a row of its own, padded to the longest, and longer ones are refused.
    """
    if packed:
        return open(data).tokenize(tokenizer).batch(packed=(length, batch_size)).seed(seed)
    pipeline = open(data).tokenize(tokenizer, max_tokens=length)
    pipeline = pipeline._with("causal_labels")
    return pipeline.batch(batch_size, mask=True, pad_fields={"input_ids": 8, "labels": 8}).seed(seed)


def npy(
    data: str | os.PathLike[str],
    *,
    batch_size: int = 64,
    noise: float | None = None,
    masks: int = 0,
    mask_share: float = 0.05,
    buckets: int | None = None,
    dtype: str = "float32",
    seed: int = 0,
) -> Pipeline:
    """What models of padded sequences take: `input_features`, `attention_mask` and, where there are any, `labels`.

    `noise` is a standard deviation; `masks` stretches of time, each up to `mask_share` of the length, are set to zero.
    """
    pipeline = open(data).decode("npy")
    if noise is not None:
        pipeline = pipeline.noise(deviation=noise)
    if masks:
        pipeline = pipeline.spec_augment(time=(masks, mask_share))
    return pipeline.batch(batch_size, mask=True, buckets=buckets, dtype=dtype).seed(seed)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
