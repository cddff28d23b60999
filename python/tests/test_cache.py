"""What a cache keeps is the same batch, and nothing is made twice; threads and batches ahead are found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

import feedwater as fw


def flow(data: Path) -> fw.Pipeline:
    return fw.open(data).decode(16_000).log_mel(80).spec_augment(time=(1, 0.1)).batch(4).seed(3)


def epochs(pipeline: fw.Pipeline, count: int = 2) -> tuple[list[Any], dict[str, Any]]:
    loader = pipeline.numpy()
    batches = [(batch["keys"], numpy.array(batch["input_features"])) for _ in range(count) for batch in loader]
    return batches, loader.report()


def same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(keys == others and numpy.array_equal(these, those) for (keys, these), (others, those) in pairs)


@pytest.mark.parametrize("level", ["raw", "decoded", "features", "ram"])
def test_batches_are_the_same_and_nothing_is_made_twice(morse: Path, tmp_path: Path, level: str) -> None:
    plain, nothing = epochs(flow(morse))
    kept, report = epochs(flow(morse).threads(1).cache(level, folder=tmp_path))
    assert same(plain, kept)
    assert "cache" not in nothing
    assert (report["cache"]["level"], report["cache"]["misses"]) == (level, len({key for keys, _ in plain for key in keys}))


def test_auto_says_why(morse: Path, tmp_path: Path) -> None:
    report = epochs(flow(morse).cache(folder=tmp_path), 1)[1]["cache"]
    assert report["why"].startswith(report["level"])


def test_half_precision_takes_half_the_bytes(morse: Path, tmp_path: Path) -> None:
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        report = epochs(flow(morse).cache("features", folder=tmp_path / dtype, dtype=dtype), 1)[1]
        sizes[dtype] = report["cache"]["written_bytes"]
    assert sizes["bfloat16"] < 0.6 * sizes["float32"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda pipeline: pipeline.cache("all"), "there is no cache `all`"),
        (lambda pipeline: pipeline.cache("features", key="name"), "`key` is `name`"),
        (lambda pipeline: pipeline.cache("features", dtype="int8"), "`dtype` is `int8`"),
        (lambda pipeline: pipeline.threads("many"), "`threads` is `many`"),
        (lambda pipeline: pipeline.cpu_ceiling(2.0), "a ceiling of 2 of the cores"),
    ],
)
def test_what_is_wrong_is_said_with_a_hint(morse: Path, wrong: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"{said}.*\nhint: "):
        wrong(flow(morse)).numpy()


def test_threads_are_found_out_and_what_is_changed_is_said(morse: Path) -> None:
    loader = flow(morse).threads("auto").prefetch("auto").numpy()
    before = loader.report()["threads"]
    for _ in range(12):
        for _batch in loader:
            pass
    report = loader.report()
    # On a machine where all is well from the start, nothing is.
    tuning = report["tuning"]
    assert all(", because " in decision["text"] or " stay at " in decision["text"] for decision in tuning)
    assert tuning or (report["threads"], report["prefetch"]) == (before, 3)


def test_processes_of_a_machine_share_its_cores(morse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = flow(morse).ranks(0, 1).numpy().report()["threads"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(alone))
    assert flow(morse).ranks(0, 1).numpy().report()["threads"] == 1
