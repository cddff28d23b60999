"""What does the PyTorch trainer promise? On a small model of its own, step by step."""

from __future__ import annotations

import json
import math
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from feedwater import _core
from feedwater.attach import record
from feedwater.pipeline import Batch, Pipeline
from feedwater.train import checkpoints, feed, loop, memory, places, relay
from feedwater.train.__main__ import main
from feedwater.train.group import Group
from feedwater.train.places import Places
from feedwater.train.recipe import Recipe, Score, Tensors, parts_of
from feedwater.train.settings import Settings, Wrong
from feedwater.train.speed import Speed
from feedwater.train.tell import Teller


def settings(*flags: object, data: Path | str = "data", out: Path | str = "out", recipe: str = "cnn-lstm") -> Settings:
    line = [recipe, "--data-dir", data, "--output-dir", out, "--report-to", "none", *flags]
    return Settings(json.loads(_core.train_options([str(word) for word in line])))


class Toy(Recipe):
    """The class of an array, by its mean: what the loop does with it is what is looked at."""

    name = "toy"
    learning_rate = 0.05

    def __init__(self, settings: Settings, folder: Path | None = None) -> None:
        torch.manual_seed(3)
        super().__init__(settings, torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)), folder)
        if folder is not None:
            self.model.load_state_dict(load_file(folder / "model.safetensors"))
        self.most_rows = 1 << 20
        self.seen: list[list[str]] = []
        self.spoil: Callable[[int, torch.Tensor], torch.Tensor] = lambda at, loss: loss

    def pipeline(self, data: Pipeline, *, learning: bool) -> Pipeline:
        return data.decode("npy").batch(1)

    def prepare(self, batch: Tensors, *, learning: bool, generator: torch.Generator | None) -> Tensors:
        lengths = torch.tensor(batch["lengths"])
        batch["mean"] = batch.pop("input_features").sum(1) / lengths[:, None]
        return batch

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        if len(batch["labels"]) > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if model.training:
            self.seen.append(list(batch["keys"]))
        out = model(batch["mean"])
        loss = torch.nn.functional.cross_entropy(out.float(), batch["labels"].flatten(), reduction="sum")
        return self.spoil(len(self.seen), loss), torch.tensor(len(out))

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        save_file(weights or self.model.state_dict(), folder / "model.safetensors")


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:08}" / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def losses_of(run: Path) -> list[float]:
    return [line["loss"] for line in _lines(run / "record.jsonl") if "step" in line]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, path.read_text().splitlines())


def trained(data: Path, out: Path, *flags: object, change: Callable[[Toy], None] = lambda toy: None) -> tuple[loop.Summary, Toy]:
    made: list[Toy] = []
    asked = settings("--batch-size", 4, "--save-steps", 3, "--eval-steps", 6, "--warmup-steps", 2, *flags, data=data, out=out)

    def make(folder: Path | None) -> Toy:
        made.append(Toy(asked, folder))
        change(made[-1])
        return made[-1]

    return loop.run(asked, make), made[0]


# What was asked for


@pytest.mark.parametrize("recipe", ["whisper", "lm", "cnn-lstm", "tts"])
def test_every_flag_of_the_command_has_a_name_here(recipe: str) -> None:
    said = json.loads(_core.train_options([recipe, "--data-dir", "x"]))
    assert said.keys() <= Settings.__annotations__.keys()
    known = settings(recipe=recipe)
    assert (known.recipe, known.output_dir, known.batch_size) == (recipe, Path("out"), 16)


def test_no_name_is_left_that_no_command_says() -> None:
    said: set[str] = set()
    for recipe in ("whisper", "lm", "cnn-lstm", "tts"):
        said |= json.loads(_core.train_options([recipe, "--data-dir", "x"])).keys()
    assert said == Settings.__annotations__.keys()


def test_a_configuration_file_counts_less_than_a_flag(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("data:\n  num_workers: 24\n  prefetch_buffer_size: 6\nmodel:\n  batch_size: 8\nbf16: true\n")
    said = settings("--config", config, "--batch-size", 2, "--fp16", recipe="tts")
    assert (said.threads, said.prefetch, said.batch_size, said.precision) == (24, 6, 2, "f16")
    with pytest.raises(SystemExit) as ended:
        settings("--config", tmp_path / "none.yaml")
    assert ended.value.code == 2


# The loop


def test_it_learns_and_leaves_a_model_a_record_and_checkpoints(arrays: Path, tmp_path: Path) -> None:
    summary, _ = trained(arrays, tmp_path, "--max-steps", 60, "--eval-steps", 30)
    assert (summary.steps, summary.ended) == (60, "steps")
    losses = losses_of(tmp_path)
    assert len(losses) == 60 and sum(losses[-10:]) < sum(losses[:10])
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept[-1] == "step-00000060" and len(kept) in (2, 3)
    assert "VERDICT" in _core.verdict(tmp_path / "record.jsonl")
    scores = [line["score"] for line in _lines(tmp_path / "record.jsonl") if "score" in line]
    assert [score["steps"] for score in scores] == [30, 60]


def test_dividing_a_step_does_not_change_it(arrays: Path, tmp_path: Path) -> None:
    trained(arrays, tmp_path / "whole", "--batch-size", 8, "--max-steps", 3)
    trained(arrays, tmp_path / "halves", "--batch-size", 4, "--gradient-accumulation-steps", 2, "--max-steps", 3)
    whole, halves = losses_of(tmp_path / "whole"), losses_of(tmp_path / "halves")
    assert whole == pytest.approx(halves, rel=1e-5)
    one, other = weights_of(tmp_path / "whole", 3), weights_of(tmp_path / "halves", 3)
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


@pytest.mark.parametrize("at", [1, 3, 7])
def test_a_run_that_is_stopped_and_resumed_is_the_same_run(arrays: Path, tmp_path: Path, at: int) -> None:
    _, whole = trained(arrays, tmp_path / "whole", "--max-steps", 9)

    def stop(toy: Toy) -> None:
        def raise_at(step: int, loss: torch.Tensor) -> torch.Tensor:
            if step == at:
                signal.raise_signal(signal.SIGINT)
            return loss

        toy.spoil = raise_at

    summary, first = trained(arrays, tmp_path / "parts", "--max-steps", 9, change=stop)
    assert (summary.ended, summary.steps) == ("asked", at)
    assert loop.finish(settings("--json"), [summary]) == 130
    summary, second = trained(arrays, tmp_path / "parts", "--max-steps", 9, "--resume")
    assert (summary.ended, summary.steps) == ("steps", 9)
    assert first.seen + second.seen == whole.seen
    assert same(weights_of(tmp_path / "whole", 9), weights_of(tmp_path / "parts", 9))
    assert losses_of(tmp_path / "parts") == losses_of(tmp_path / "whole")


def test_a_torn_checkpoint_is_found_and_the_one_before_it_used(
    arrays: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(arrays, tmp_path, "--max-steps", 9)
    before = {name: tensor.clone() for name, tensor in weights_of(tmp_path, 9).items()}
    torn = tmp_path / "checkpoints" / "step-00000009" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    summary, _ = trained(arrays, tmp_path, "--max-steps", 9, "--resume")
    assert summary.steps == 9
    assert "step-00000009` cannot be used: model.safetensors has" in capfd.readouterr().err
    assert same(before, weights_of(tmp_path, 9))


def test_a_run_is_not_mixed_with_another(arrays: Path, tmp_path: Path) -> None:
    trained(arrays, tmp_path, "--max-steps", 3)
    with pytest.raises(Wrong, match="there is a run in .* already\nhint: --resume"):
        trained(arrays, tmp_path, "--max-steps", 3)
    with pytest.raises(Wrong, match="--seed was 7, and is 8 now"):
        trained(arrays, tmp_path, "--max-steps", 6, "--resume", "--seed", 8)
    with pytest.raises(Wrong, match="a step had 4 samples, and would have 8 now"):
        trained(arrays, tmp_path, "--max-steps", 6, "--resume", "--batch-size", 8)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000003")
    folder = tmp_path / "checkpoints"
    assert checkpoints.Checkpoints(tmp_path).newest() == (None, []), list(folder.iterdir())


def test_a_full_disk_is_told_and_the_run_goes_on(
    arrays: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fill(toy: Toy) -> None:
        save = toy.save

        def once(folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
            if not full:
                full.append(True)
                # As safetensors and torch say it: neither is an OSError.
                raise RuntimeError("I/O error: No space left on device (os error 28)")
            save(folder, weights)

        toy.save = once  # type: ignore[method-assign]

    full: list[bool] = []
    summary, _ = trained(arrays, tmp_path, "--max-steps", 6, change=fill)
    assert summary.steps == 6 and summary.model is not None
    assert "warning: no checkpoint at step 3: I/O error: No space left" in capfd.readouterr().err
    assert not list((tmp_path / "checkpoints").glob(".unfinished*"))


def test_patience_ends_a_run_that_gets_no_better(arrays: Path, tmp_path: Path) -> None:
    flags = ("--eval-steps", 1, "--early-stopping-patience", 2, "--learning-rate", 1e-30, "--max-steps", 50)
    summary, _ = trained(arrays, tmp_path, *flags)
    assert summary.ended == "patience" and summary.steps == 3


def test_as_long_as_all_is_wrong_a_smaller_loss_is_better(arrays: Path, tmp_path: Path) -> None:
    """A model that says nothing yet has every letter wrong; it went on with its first checkpoint, and patience ended it."""
    losses = iter([3.7, 3.6, 3.65, 3.5])

    def silent(toy: Toy) -> None:
        toy.score = lambda model, batches: Score(next(losses), {"cer": 1.0})  # type: ignore[method-assign]

    flags = ("--eval-steps", 1, "--early-stopping-patience", 2, "--max-steps", 4)
    summary, _ = trained(arrays, tmp_path, *flags, change=silent)
    assert summary.ended == "steps" and summary.best == (1.0, 4)


def test_a_loss_that_is_no_number_ends_the_run_with_a_hint(arrays: Path, tmp_path: Path) -> None:
    def spoil(toy: Toy) -> None:
        toy.spoil = lambda at, loss: loss * (math.nan if at == 5 else 1)

    with pytest.raises(Wrong, match="the loss of step 5 is nan\nhint: a smaller --learning-rate"):
        trained(arrays, tmp_path, "--max-steps", 9, change=spoil)
    assert all(torch.isfinite(tensor).all() for tensor in weights_of(tmp_path, 3).values())


def test_bad_samples_are_left_out_and_written_down(arrays: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(arrays, data)
    (data / "even" / "000.npy").write_bytes(b"\x93NUMPY garbage")
    # One in thirty is more than the usual ceiling of 1 %, rounded up.
    summary, toy = trained(data, tmp_path / "run", "--max-steps", 7)
    assert summary.steps == 7
    assert not any("000" in key for keys in toy.seen for key in keys)
    assert "000.npy" in (tmp_path / "run" / "quarantine.jsonl").read_text()


# Precision


def test_a_gradient_that_is_no_number_ends_the_run_before_it_is_saved(arrays: Path, tmp_path: Path) -> None:
    def spoil(toy: Toy) -> None:
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
                return loss.clone()

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
                return gradient * math.inf

        toy.spoil = lambda at, loss: Bad.apply(loss) if at == 6 else loss  # type: ignore[no-untyped-call]

    with pytest.raises(Wrong, match="the gradient's norm of step 6 is (inf|nan)\nhint:"):
        trained(arrays, tmp_path, "--max-steps", 9, change=spoil)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003"]


def test_a_batch_of_bad_samples_alone_is_passed_over(arrays: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(arrays, data)
    (data / "even" / "000.npy").write_bytes(b"\x93NUMPY garbage")
    summary, toy = trained(data, tmp_path / "run", "--max-steps", 28, "--batch-size", 1, "--eval-data", arrays)
    assert summary.steps == 28
    assert len({key for keys in toy.seen for key in keys}) == 28


def test_in_a_group_a_batch_of_bad_samples_alone_is_stood_in_for(arrays: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(arrays, data)
    (data / "even" / "000.npy").write_bytes(b"\x93NUMPY garbage")
    asked = settings("--batch-size", 1, "--eval-data", arrays, data=data, out=tmp_path)
    recipe, here, group = Toy(asked), Places(torch.device("cpu"), torch.device("cpu")), Group(asked)
    loader = feed.loader_of(recipe.data()[0], asked, 1, group, here)
    group.world = 2
    batches = feed.Feed(loader, recipe, here, asked, group)
    # All of an epoch: nobody waits for a process that has nothing.
    valid = [batches.placed(next(batches))["valid"] for _ in range(30)]
    assert valid.count([False]) == 1 and valid.count([True]) == 29


def test_half_precision_reaches_the_same_loss(arrays: Path, tmp_path: Path) -> None:
    trained(arrays, tmp_path / "f32", "--max-steps", 30)
    trained(arrays, tmp_path / "bf16", "--max-steps", 30, "--bf16", "--device", "cpu")
    f32, bf16 = losses_of(tmp_path / "f32"), losses_of(tmp_path / "bf16")
    assert f32 != bf16
    assert sum(bf16[-5:]) == pytest.approx(sum(f32[-5:]), rel=0.02)


def test_what_overflows_in_f16_is_skipped_and_the_scale_halved(arrays: Path, tmp_path: Path) -> None:
    scales: list[float] = []
    kept: list[torch.Tensor] = []
    asked = settings("--batch-size", 4, "--fp16", "--device", "cpu", data=arrays, out=tmp_path)
    recipe = Toy(asked)
    group, here = Group(asked), Places(torch.device("cpu"), torch.device("cpu"))
    speed = Speed(asked, here, group, recipe)
    step = loop.Steps(asked, recipe, recipe.model, speed.optimizer(recipe.model, 0.05), speed, group, here, 0.05)
    step.steps = 1_000
    teller = Teller(asked, first=False)
    recipe.spoil = lambda at, loss: loss * (math.inf if at == 3 else 1)
    batches = feed.Feed(feed.loader_of(recipe.data()[0], asked, 4, group, here), recipe, here, asked, group)
    for at in range(6):
        step.take(at + 60, batches, 1, teller.asked(at, 0), teller, [])
        scales.append(speed.scaler.get_scale())
        kept.append(recipe.model[0].weight.detach().clone())
    assert scales == [65536.0, 65536.0, 32768.0, 32768.0, 32768.0, 32768.0]
    changed = [not torch.equal(kept[at], kept[at - 1]) for at in range(1, 6)]
    assert changed == [True, False, True, True, True]
    # Nothing is lost: each step had its batch, and there was no other.
    assert len(recipe.seen) == 6


# Memory


@pytest.mark.parametrize("most", [2, 1])
def test_when_memory_does_not_suffice_the_micro_batch_is_halved(arrays: Path, tmp_path: Path, most: int) -> None:
    flags = ("--max-steps", 5, "--batch-size", 8, "--gradient-accumulation-steps", 2)
    trained(arrays, tmp_path / "whole", *flags)

    def small(toy: Toy) -> None:
        toy.most_rows = most

    summary, toy = trained(arrays, tmp_path / "split", *flags, "--on-oom", "split", change=small)
    assert summary.steps == 5 and max(map(len, toy.seen)) == most
    one, other = weights_of(tmp_path / "whole", 5), weights_of(tmp_path / "split", 5)
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_out_of_memory_says_what_to_change(arrays: Path, tmp_path: Path) -> None:
    def small(toy: Toy) -> None:
        toy.most_rows = 2

    with pytest.raises(Wrong, match=r"not suffice for 4 samples: CUDA out of memory.*\nhint: --batch-size 2 --gradient-acc.* 2; or --on-oom"):
        trained(arrays, tmp_path, "--max-steps", 5, change=small)


def test_the_knee_is_the_smallest_that_is_nearly_as_fast_as_any_that_fits() -> None:
    paces = {1: 100.0, 2: 190.0, 4: 340.0, 8: 352.0, 16: 353.0, 32: 900.0}

    def attempt(size: int) -> memory.Trial:
        return memory.Trial(size, paces[size], None, fits=size < 32)

    trials = memory.look(64, attempt)
    assert [trial.size for trial in trials] == [1, 2, 4, 8, 16]
    assert memory.knee(trials) == 4
    assert memory.knee([memory.Trial(1, 50.0, 0.5, True), memory.Trial(2, 99.0, 0.9, False)]) == 1
    with pytest.raises(Wrong, match="not even one sample fits"):
        memory.knee([memory.Trial(1, 0.0, None, fits=False)])


def test_a_batch_size_is_found_and_the_effective_batch_kept(
    arrays: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def small(toy: Toy) -> None:
        toy.most_rows = 3

    summary, toy = trained(arrays, tmp_path, "--batch-size", "auto", "--max-steps", 2, change=small)
    said = capfd.readouterr().err
    assert "4: out of memory" in said and "16 samples a step as asked for" in said
    record = next(_lines(tmp_path / "record.jsonl"))
    assert summary.steps == 2 and record["run"]["settings"]["batch_size"] == 16


def test_parts_have_all_rows_once() -> None:
    batch = Batch({"x": torch.arange(7)}, {"keys": list("abcdefg"), "texts": {"text": list("ABCDEFG")}, "step": 3})
    for parts in (1, 2, 3, 7, 9):
        split = list(parts_of(batch, parts))
        assert torch.cat([part["x"] for part in split]).tolist() == list(range(7))
        assert [key for part in split for key in part["keys"]] == list("abcdefg")
        assert [text for part in split for text in part["texts"]["text"]] == list("ABCDEFG")


def test_the_batches_of_a_step_are_recorded_together() -> None:
    def made(number: int, **more: Any) -> dict[str, Any]:
        blame = [{"key": f"{number}{at}", "stage": "decode", "nanos": 10 * at + number} for at in range(3)]
        work = {"read": 2, "decode": 30 * number}
        return {"work_nanos": work, "cpu_nanos": 5, "bytes": 100, "slowest": blame, "ready": number, "threads": number, **more}

    first = made(1, waited_for={"key": "a", "stage": "read", "nanos": 9}, tuned=["threads 1 → 2: kept"])
    step = record.together(record.together(None, first), made(2, tuned=["threads 2 → 3: taken back"]))
    assert step is not None
    assert step["work_nanos"] == {"read": 4, "decode": 90} and (step["cpu_nanos"], step["bytes"]) == (10, 200)
    assert [blame["key"] for blame in step["slowest"]] == ["22", "12", "21", "11"]
    assert (step["ready"], step["threads"], step["waited_for"]["key"]) == (1, 2, "a")
    assert step["tuned"] == ["threads 1 → 2: kept", "threads 2 → 3: taken back"]
    assert record.together(first, None) == first


# Devices, of which there are none here: what is asked of them, and in which order


class Card:
    """A stand-in for CUDA: says what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare(self, make: Callable[[], Tensors]) -> tuple[Tensors, Any]:
        batch = make()
        self.calls.append(f"prepare {batch['number']}")
        return batch, f"made {batch['number']}"

    def copy(self, batch: Tensors, made: Any) -> tuple[Tensors, Any]:
        self.calls.append(f"copy {batch['number']} after {made}")
        return batch, f"copied {batch['number']}"

    def join(self, batch: Tensors, copied: Any) -> None:
        self.calls.append(f"join {copied}")


def test_two_devices_have_three_batches_on_their_way() -> None:
    card, asked = Card(), [0]

    def batches() -> Iterator[Tensors]:
        for number in range(5):
            asked[0] = number + 1
            yield Batch({}, {"number": number})

    sent = relay.Relay(batches(), lambda batch: batch, card, lambda: asked[0], lambda: f"how {asked[0]} was made")
    assert next(sent)["number"] == 0
    # It is trained on; the next two are prepared and on their way, and do not count as consumed.
    assert card.calls == [
        "prepare 0", "copy 0 after made 0", "join copied 0",
        "prepare 1", "copy 1 after made 1", "prepare 2", "copy 2 after made 2",
    ]  # fmt: skip
    assert (sent.consumed, sent.last_input) == (1, "how 1 was made")
    assert [batch["number"] for batch in sent] == [1, 2, 3, 4]
    assert sent.consumed == 5 and card.calls[-1] == "join copied 4"


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {event.on}")


class FakeEvent:
    def __init__(self, **_: object) -> None:
        self.on = "nothing"

    def record(self, stream: FakeStream) -> None:
        self.on = stream.name
        stream.log.append(f"event on {stream.name}")

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: FakeEvent) -> float:
        return 2.0


class FakeTensor:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def to(self, device: object, *, non_blocking: bool) -> FakeTensor:
        self.log.append(f"copy to {device}{', not waited for' if non_blocking else ''}")
        return FakeTensor(self.log)

    def record_stream(self, stream: FakeStream) -> None:
        self.log.append(f"kept for {stream.name}")


def test_the_calls_of_a_peer_copy_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    here = Places(model=torch.device("cuda", 1), data=torch.device("cuda", 0))

    class Entered:
        def __init__(self, what: Any) -> None:
            self.what = getattr(what, "name", what)

        def __enter__(self) -> None:
            log.append(f"on {self.what}")

        def __exit__(self, *_: object) -> None:
            log.append(f"off {self.what}")

    streams = {0: "data", 1: "model"}
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(log, streams[device.index]))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", Entered)
    monkeypatch.setattr(torch.cuda, "device", Entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(log, "step"))
    between = relay.CudaBetween(here)
    batch, made = between.prepare(lambda: Batch({"x": FakeTensor(log)}, {}))  # type: ignore[arg-type]
    moved, copied = between.copy(batch, made)
    between.join(moved, copied)
    assert log == [
        "on cuda:0", "on data", "event on data", "event on data", "off data", "off cuda:0",
        "model waits for data", "on model", "copy to cuda:1, not waited for", "event on model", "off model", "kept for model",
        "step waits for model", "kept for step",
    ]  # fmt: skip
    assert between.busy_nanos() == 2_000_000 and between.busy_nanos() == 0


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """Two cards of 24 GB, which are not there; what is held of them."""
    held: list[tuple[float, str]] = []

    class Properties:
        total_memory, name = 24 * 1024 * places.MEGABYTE, "stand-in"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: held.append((share, str(device))))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return held


def test_devices_are_those_that_were_asked_for(two_cards: list[tuple[float, str]]) -> None:
    said: list[str] = []
    flags = ("--data-gpu", 0, "--model-gpu", 1, "--data-gpu-memory", 8192, "--model-gpu-memory", 16384)
    here = places.choose(settings(*flags, "--enable-memory-isolation", recipe="tts"), 0, said.append)
    assert (str(here.data), str(here.model), here.are_one) == ("cuda:0", "cuda:1", False)
    assert two_cards == [(16384 / 24576, "cuda:1"), (8192 / 24576, "cuda:0")]
    for flags, data, model in [
        ((), "cuda:1", "cuda:1"),
        (("--device", "cuda"), "cuda:1", "cuda:1"),
        (("--device", "cpu"), "cpu", "cpu"),
        (("--data-device", "cpu"), "cpu", "cuda:1"),
    ]:
        here = places.choose(settings(*flags, recipe="tts"), 1, said.append)
        assert (str(here.data), str(here.model)) == (data, model)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model-gpu", 2), "there is no GPU 2 for --model-gpu: torch sees GPUs 0 to 1\nhint: `nvidia-smi -L` lists them"),
        (("--data-gpu", 1, "--model-gpu", 1), "the data and the model are both to be on GPU 1\nhint: leave out --data-gpu"),
        (("--model-gpu-memory", 32768), "--model-gpu-memory 32768 is above the 24576 MB that cuda:0 has\nhint: .* 22118 leaves"),
        (("--device", "vulkan"), "`--device vulkan` is no device to train on\nhint: .*native"),
    ],
)
def test_what_the_cards_do_not_have_is_said(two_cards: object, flags: tuple[object, ...], said: str) -> None:
    with pytest.raises(Wrong, match=said):
        places.choose(settings(*flags, recipe="tts"), 0, print)


def test_without_a_card_the_cpu_is_taken_with_a_sentence() -> None:
    said: list[str] = []
    flags = ("--data-gpu", 0, "--model-gpu", 1, "--data-gpu-memory", 8192)
    here = places.choose(settings(*flags, recipe="tts"), 0, said.append)
    assert here.are_one and here.model.type == "cpu"
    assert said[0] == "devices   there is no GPU that torch can use here: --data-gpu 0 and --model-gpu 1 mean the CPU"
    assert "ceilings are for GPUs" in said[1]
    with pytest.raises(Wrong, match="`cuda:0` is not here"):
        places.choose(settings("--device", "cuda:0"), 0, print)


def test_every_setting_says_whether_it_is_on_and_why(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_cards: object
) -> None:
    asked = settings("--noise", 0.1, "--augment-on", "device", data=arrays, out=tmp_path, recipe="whisper")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    card = torch.device("cuda", 0)
    speed = Speed(asked, Places(card, card), Group(asked), Toy(asked))
    states = {choice.name: choice.state for choice in speed.choices}
    assert states == {
        "f16 autocast": "on", "loss scaling": "on", "TF32": "on", "cuDNN benchmark": "on", "SDPA attention": "on",
        "channels-last": "not here", "fused AdamW": "on", "gradients set to none": "on", "gradient checkpointing": "off",
        "compile": "off", "pinned, asynchronous copies": "on", "noise and masks on the device": "on",
    }  # fmt: skip
    assert all(choice.why for choice in speed.choices)
    with pytest.raises(Wrong, match="this GPU does not compute in bf16"):
        Speed(settings("--bf16"), Places(card, card), Group(asked), Toy(asked))
    torch.backends.cudnn.benchmark = False


def test_noise_and_masks_on_the_device_are_the_same_after_a_resume(arrays: Path, tmp_path: Path) -> None:
    flags = ["cnn-lstm", "--data-dir", str(arrays), "--report-to", "none", "--encoder-epochs", "0", "--noise", "0.1"]
    flags += ["--time-masks", "2", "--augment-on", "device", "--channels", "8", "--hidden", "8", "--batch-size", "4", "--json"]
    assert main([*flags, "--output-dir", str(tmp_path / "whole"), "--max-steps", "4"]) == 0
    assert main([*flags, "--output-dir", str(tmp_path / "parts"), "--max-steps", "4", "--save-steps", "2"]) == 0
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000004")
    assert main([*flags, "--output-dir", str(tmp_path / "parts"), "--max-steps", "4", "--resume"]) == 0
    assert same(weights_of(tmp_path / "whole", 4), weights_of(tmp_path / "parts", 4))
    plain = [flag for flag in flags if flag not in ("--augment-on", "device")]
    assert main([*plain, "--output-dir", str(tmp_path / "host"), "--max-steps", "4"]) == 0
    assert not same(weights_of(tmp_path / "whole", 4), weights_of(tmp_path / "host", 4))


# What is told


def test_curves_go_where_they_were_asked_to(arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said: list[Any] = []
    for name in ("wandb", "trackio", "mlflow"):
        stand_in = types.ModuleType(name)
        stand_in.init = lambda **about: said.append(("init", about["project"]))  # type: ignore[attr-defined]
        stand_in.log = lambda values, step: said.append(("log", step, sorted(values)))  # type: ignore[attr-defined]
        stand_in.finish = lambda: said.append(("finish",))  # type: ignore[attr-defined]
        stand_in.set_experiment = lambda name: said.append(("experiment", name))  # type: ignore[attr-defined]
        stand_in.start_run = lambda run_name: said.append(("init", "feedwater"))  # type: ignore[attr-defined]
        stand_in.log_params = lambda params: None  # type: ignore[attr-defined]
        stand_in.log_metrics = lambda values, step: said.append(("log", step, sorted(values)))  # type: ignore[attr-defined]
        stand_in.end_run = lambda: said.append(("finish",))  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, stand_in)
    trained(arrays, tmp_path, "--max-steps", 6, "--report-to", "tensorboard,wandb,mlflow,trackio")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses_of(tmp_path))
    assert len(events.Scalars("eval/loss")) == 1
    assert said.count(("init", "feedwater")) == 3 and said.count(("finish",)) == 3
    assert said.count(("log", 6, ["grad_norm", "learning_rate", "loss"])) == 3


def test_a_run_can_be_in_a_thread_of_somebody_else(arrays: Path, tmp_path: Path) -> None:
    found: list[loop.Summary] = []
    thread = threading.Thread(target=lambda: found.append(trained(arrays, tmp_path, "--max-steps", 2)[0]))
    thread.start()
    thread.join(120)
    assert found and found[0].steps == 2


def test_scores_are_judged_by_what_is_wrong_first() -> None:
    assert Score(2.0, {"cer": 0.3, "wer": 0.9}).judged == 0.3
    assert Score(2.0).judged == 2.0
