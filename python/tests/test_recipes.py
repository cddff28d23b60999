"""Do the recipes learn, do the seeds' command lines run, and does everything that can be wrong get a sentence?"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, WhisperForConditionalGeneration, pipeline

import feedwater as fw
from conftest import run
from feedwater import _core
from feedwater.train import cnn_lstm, tts, whisper
from feedwater.train.__main__ import main


def generated(folder: Path, *arguments: object) -> Path:
    made = run("-m", "feedwater", "generate", *map(str, arguments), "--out", folder)
    assert made.returncode == 0, made.stderr
    return folder


def scores(out: Path) -> list[dict[str, float]]:
    return [line["score"] for line in map(json.loads, (out / "record.jsonl").read_text().splitlines()) if "score" in line]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in map(json.loads, (out / "record.jsonl").read_text().splitlines()) if "step" in line]


def trained(*flags: object) -> None:
    assert main([str(flag) for flag in [*flags, "--report-to", "none", "--json"]]) == 0


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads wait for each other by turning in circles: on cores that others use as well, one is faster."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Morse of a few letters, without noise: what a small Whisper can learn in a minute."""
    return generated(
        tmp_path_factory.mktemp("short") / "data", "morse", "--clips", 240, "--max-seconds", 3, "--wpm", "25..25",
        "--snr-db", "40..40",
    )  # fmt: skip


# They learn


def test_cnn_lstm_transcribes_as_the_native_trainer_does(short: Path, tmp_path: Path) -> None:
    """What that one learns in minutes is shown by `feedwater quickstart`: here, that the steps are the same."""
    both = ("cnn-lstm", "--data-dir", short, "--eval-data", short, "--batch-size", 4, "--max-steps", 20, "--warmup-steps", 4)
    trained(*both, "--output-dir", tmp_path / "first", "--channels", 16, "--hidden", 24)
    model = tmp_path / "first" / "checkpoints" / "step-00000020"
    assert losses(tmp_path / "first")[-1] < 0.9 * losses(tmp_path / "first")[0]
    trained(*both, "--output-dir", tmp_path / "torch", "--model", model)
    built = os.environ.get("FEEDWATER_BUILT")
    if not built:
        pytest.skip("needs the command itself: `cargo xtask python`")
    line = [str(Path(built) / "feedwater"), "train", *map(str, both), "--output-dir", str(tmp_path / "native")]
    said = subprocess.run([*line, "--engine", "native", "--model", str(model)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert losses(tmp_path / "torch") == pytest.approx(losses(tmp_path / "native"), rel=1e-3)
    # The command, which knows nothing of torch, uses what torch has trained.
    clips = sorted((short / "train").glob("*.wav"))[:2]
    said = subprocess.run([line[0], "transcribe", tmp_path / "torch", *clips], capture_output=True, text=True)
    assert said.returncode == 0 and len(said.stdout.splitlines()) == 2, said.stderr


def test_cnn_lstm_classifies_after_guessing_what_is_hidden(tmp_path: Path) -> None:
    data, random = tmp_path / "data", numpy.random.default_rng(3)
    for number in range(160):
        label = number % 4
        frames = int(random.integers(40, 90))
        time = numpy.arange(frames)[:, None] * (0.1 + 0.12 * label) + numpy.arange(16)[None] * 0.3
        place = data / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        numpy.save(place / f"{number}.npy", (numpy.sin(time) + 0.5 * random.standard_normal((frames, 16))).astype("f4"))
    out = tmp_path / "run"
    flags = ("--channels", 32, "--hidden", 32, "--encoder-epochs", 3, "--classifier-epochs", 8, "--warmup-steps", 5)
    trained("cnn-lstm", "--data-dir", data, "--output-dir", out, *flags, "--noise", 0.05, "--time-masks", 1)
    assert losses(out / "encoder")[-1] < 0.95 * losses(out / "encoder")[0]
    # Always the same class is wrong three times in four.
    assert scores(out)[-1]["error"] < 0.3
    began = load_file(next((out / "encoder" / "checkpoints").glob("step-*")) / "model.safetensors")
    assert "decoder.weight" in began and "head.weight" not in began


def test_whisper_learns_and_transformers_loads_it(short: Path, tmp_path: Path, tokenizer: Path) -> None:
    flags = ("--max-seconds", 3, "--max-steps", 60, "--eval-steps", 60, "--batch-size", 4, "--learning-rate", 5e-4)
    flags += ("--tokenizer", tokenizer / "tokenizer.json", "--warmup-steps", 10, "--language", "en")
    trained("whisper", "--data-dir", short, "--output-dir", tmp_path, *flags)
    # What is known of the tokens without listening.
    loader = fw.open(short).without_held_out().decode(16_000).tokenize(tokenizer, suffix=["<|endoftext|>"]).batch(1).numpy()
    counts = Counter(int(token) for batch in loader for token in batch["labels"].flatten() if token >= 0)
    total = sum(counts.values())
    trivial = -sum(count / total * math.log(count / total) for count in counts.values())
    assert scores(tmp_path)[-1]["loss"] < trivial, (scores(tmp_path), trivial)
    [model] = [path for path in (tmp_path / "checkpoints").iterdir() if path.name == "step-00000060"]
    _, report = WhisperForConditionalGeneration.from_pretrained(model, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    speech = pipeline("automatic-speech-recognition", model=str(model))
    clip = sorted((short / "train").glob("*.wav"))[0]
    # Not by its name: transformers has ffmpeg read that, which not everybody has.
    sound, rate = soundfile.read(clip, dtype="float32")
    heard = speech({"raw": sound, "sampling_rate": rate}, generate_kwargs={"max_new_tokens": 8})
    assert isinstance(heard["text"], str)


def test_bad_samples_are_told_and_too_many_name_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = generated(tmp_path / "data", "npy", "--samples", 40)
    # The first as well: it was looked at to see what the arrays are.
    for file in sorted(data.rglob("*.npy"))[:3]:
        file.write_bytes(file.read_bytes()[:100])
    line = ["cnn-lstm", "--data-dir", data, "--encoder-epochs", 0, "--max-steps", 8, "--report-to", "none", "--batch-size", 8]
    assert main([*map(str, line), "--output-dir", str(tmp_path / "few")]) == 2
    assert "more than the ceiling" in (said := capsys.readouterr().err) and "\nhint: --bad-ceiling 5% " in said
    assert main([*map(str, line), "--output-dir", str(tmp_path / "many"), "--bad-ceiling", "20%"]) == 0
    assert "left out  `" in capsys.readouterr().err


def test_clips_that_are_too_long_are_left_out_without_a_ceiling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = generated(tmp_path / "data", "morse", "--clips", 40, "--max-seconds", 4)
    for seconds, whole in (3, True), (1, False):
        line = ["tts", "--data-dir", data, "--max-seconds", seconds, "--max-steps", 2, "--batch-size", 2, "--report-to", "none"]
        code = main([*map(str, line), "--output-dir", str(tmp_path / str(seconds))])
        said = capsys.readouterr().err
        assert ((code, "left out  `" in said) == (0, True)) if whole else "samples failed" in said, said


def test_what_a_new_whisper_says_transformers_can_read(short: Path, tmp_path: Path) -> None:
    """Its tokens were letters behind `<|notimestamps|>`, all of which transformers takes for times: no text came out."""
    trained("whisper", "--data-dir", short, "--output-dir", tmp_path, "--max-seconds", 3, "--max-steps", 1, "--batch-size", 2)
    model = str(next((tmp_path / "checkpoints").glob("step-*")))
    speech = pipeline("automatic-speech-recognition", model=model)
    words = "CQ de è9"
    ids = speech.tokenizer.encode(words, add_special_tokens=False)
    assert ids == Tokenizer.from_file(f"{model}/tokenizer.json").encode(words).ids
    end, _, silent = (speech.tokenizer.convert_tokens_to_ids(token) for token in whisper.SPECIAL)
    speech.model.generate = lambda **_: torch.tensor([[silent, *ids, end]])
    assert speech(numpy.zeros(16_000, "f4"))["text"] == words


def test_a_language_model_learns_and_transformers_loads_it(tmp_path: Path) -> None:
    data = generated(tmp_path / "data", "text", "--documents", 400, "--words", "20..60")
    out = tmp_path / "run"
    flags = ("--length", 64, "--max-steps", 120, "--batch-size", 8, "--learning-rate", 3e-3, "--warmup-steps", 10)
    trained("lm", "--data-dir", data, "--output-dir", out, *flags)
    loader = fw.open(data).without_held_out().tokenize(out / "tokenizer.json").batch(packed=(64, 8)).numpy()
    counts = Counter(int(token) for batch in loader for token in batch["input_ids"].flatten())
    total = sum(counts.values())
    trivial = -sum(count / total * math.log(count / total) for count in counts.values())
    assert scores(out)[-1]["loss"] < trivial, (scores(out), trivial)
    model = out / "checkpoints" / "step-00000120"
    tokens = AutoTokenizer.from_pretrained(model)("the model", return_tensors="pt")
    loaded = AutoModelForCausalLM.from_pretrained(model)
    assert loaded(tokens["input_ids"]).logits.shape[2] == loaded.config.vocab_size


def test_rows_for_each_document_are_learned_too(tmp_path: Path) -> None:
    data = generated(tmp_path / "data", "text", "--documents", 60, "--words", "5..20")
    trained("lm", "--data-dir", data, "--output-dir", tmp_path / "run", "--no-packing", "--length", 128, "--max-steps", 3)
    assert len(losses(tmp_path / "run")) == 3


def test_tts_beats_the_mean_frame(short: Path, tmp_path: Path) -> None:
    flags = ("--max-steps", 300, "--eval-steps", 150, "--batch-size", 16, "--learning-rate", 2e-3)
    trained("tts", "--train-data", short, "--output-dir", tmp_path, *flags)
    assert losses(tmp_path)[-1] < 0.7 * losses(tmp_path)[0]
    # 1 is what guessing the mean frame of each clip gets, which no model knows beforehand.
    assert scores(tmp_path)[-1]["of_mean_frame"] < 1.0
    mel = tts.speak(tmp_path, "CQ DE")
    assert mel.shape[0] == 80 and 5 < mel.shape[1] < 3000


def test_features_made_on_the_device_are_the_engines(short: Path, tmp_path: Path) -> None:
    sound = next(iter(fw.open(short).decode(16_000).batch(4).shuffle(False).torch()))
    features = next(iter(fw.open(short).decode(16_000).log_mel(80, pad_seconds=None).batch(4).shuffle(False).torch()))
    [given] = [tensor for name, tensor in sound.items() if name != "labels"]
    filters = tts.mel_filter_bank(201, 80, 0.0, 8_000, 16_000, "slaney", "slaney")
    made, frames = tts.log_mel(given, torch.tensor(sound["lengths"]), torch.from_numpy(filters).float())
    for row, length in enumerate(frames.tolist()):
        # The last two look beyond the end, which is silence here and a mirror there.
        ours, theirs = made[row, :, : length - 2], features["input_features"][row, :, : length - 2]
        assert (ours - theirs).abs().max() < 2e-2
    trained("tts", "--train-data", short, "--output-dir", tmp_path, "--max-steps", 2, "--augment-on", "device", "--noise", 0.01)


def test_the_bins_around_the_tone_are_even_and_padding_is_zero() -> None:
    torch.manual_seed(1)
    features = torch.randn(3, 80, 61)
    there = torch.arange(61) < torch.tensor([61, 40, 7])[:, None]
    around = cnn_lstm.around_the_tone(features, there)
    assert around.shape == (3, 9, 61)
    assert around[1, :, 40:].abs().max() == 0
    tone = around[0].std(1, correction=0)
    assert tone.max() == pytest.approx(1.0, abs=1e-5)


# The seeds' command lines, with another name


WHISPER = "whisper --data_dir ./data/morse_dataset --output_dir ./models/whisper-morse"
LINES = {
    "000 windows": f"train {WHISPER} --batch_size 48 --gradient_accumulation_steps 2 --bf16",
    "000 wsl2": f"train {WHISPER} --dataloader_num_workers 4",
    "001 basic": f"train {WHISPER}-optimized --batch_size 32 --dataloader_num_workers 4 --bf16",
    "001 rtx 4080": f"train {WHISPER}-optimized --batch_size 48 --gradient_accumulation_steps 2 --dataloader_num_workers 6 "
    "--bf16 --num_epochs 3",
    "001 very large": f"train {WHISPER}-optimized --batch_size 64 --gradient_accumulation_steps 4 --dataloader_num_workers 8 --bf16",
    "001 chunking": f"train {WHISPER} --use_chunking --batch_size 32 --bf16",
    "002 24 GB": "train tts --model-size tiny --batch-size 16 --data-gpu 0 --model-gpu 1 --enable-memory-isolation "
    "--enable-static-shapes --data-gpu-memory 8192 --model-gpu-memory 16384 --train-data ./data/your_dataset",
    "002 12 GB": "train tts --model-size tiny --batch-size 8 --data-gpu 0 --model-gpu 1 --enable-memory-isolation "
    "--enable-static-shapes --data-gpu-memory 4096 --model-gpu-memory 8192 --train-data ./data/your_dataset",
    "002 test": "train tts --model-size tiny --batch-size 16 --data-gpu 0 --model-gpu 1 --enable-memory-isolation "
    "--train-data ./data --max-steps 100",
    "002 variation": "train tts --train-data ./data/your_dataset --prefetch-buffer-size 8 --cache-dataset --config configs/config.yaml",
    "002 profiler": "profile --batch-size 16 --num-steps 100 --data-gpu 0 --model-gpu 1",
}


# Of each kind, one is started as it stands; the others' words are given to what that starts, without the seconds of a start.
AS_IT_STANDS = ("001 rtx 4080", "002 variation", "002 profiler")


@pytest.mark.parametrize("name", LINES)
def test_the_seeds_command_lines_run_to_the_end(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = LINES[name]
    if "morse_dataset" in line:
        generated(tmp_path / "data" / "morse_dataset", "morse", "--clips", 2, "--max-seconds", 2)
    elif "train tts" in line:
        folder = tmp_path / "data" if "./data " in line else tmp_path / "data" / "your_dataset"
        generated(folder, "morse", "--clips", 6, "--max-seconds", 2)
        (tmp_path / "configs").mkdir()
        config = "data:\n  num_workers: 24\n  prefetch_buffer_size: 6\n  use_tf_native_loading: true\n"
        (tmp_path / "configs" / "config.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if name in AS_IT_STANDS:
        started = [sys.executable, "-m", "feedwater", *shlex.split(line)]
        said = subprocess.run(started, capture_output=True, text=True, timeout=400)
        code, out, err = said.returncode, said.stdout, said.stderr
    else:
        capfd.readouterr()
        code = main(shlex.split(line)[1:])
        out, err = capfd.readouterr()
    assert code == 0, err
    if "--data-gpu" in line and "train" in line:
        assert "--data-gpu 0 and --model-gpu 1 mean the CPU" in err
    if "--config" in line:
        assert "`use_tf_native_loading` is not needed" in err and "read into the system's memory" in err
    if "train" in line:
        assert "trained " in out, out


# What is wrong gets a sentence


def refused(capfd: pytest.CaptureFixture[str], *flags: object) -> str:
    capfd.readouterr()
    assert main([str(flag) for flag in flags]) == 2
    return capfd.readouterr().err


def test_what_is_wrong_gets_a_sentence_and_a_hint(
    short: Path, tokenizer: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    base = ("whisper", "--data-dir", short, "--output-dir", tmp_path / "run", "--report-to", "none", "--max-seconds", 3)
    said = refused(capfd, *base, "--model", "openai/whisper-tiny")
    assert said.startswith("error: `openai/whisper-tiny` is no folder here and could not be fetched from the hub:")
    assert "hint: where there is a network, `hf download openai/whisper-tiny --local-dir whisper-tiny`" in said
    assert "error: there is no folder `./nothing`\nhint:" in refused(capfd, *base, "--model", "./nothing")
    said = refused(capfd, *base, "--device", "cuda")
    assert said.startswith("error: `cuda` is not here: torch sees no CUDA device\nhint: `feedwater doctor`")
    said = refused(capfd, *base, "--data-gpu", 1, "--model-gpu", 1)
    assert "the data and the model are both to be on GPU 1\nhint: leave out --data-gpu" in said

    trained(*base[:-4], "--max-seconds", 3, "--tokenizer", tokenizer / "tokenizer.json", "--max-steps", 1, "--language", "en")
    model = tmp_path / "run" / "checkpoints" / "step-00000001"
    other = tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).write_bytes((model / name).read_bytes())
    (other / "tokenizer.json").write_text(_core.letters(short, ["<|endoftext|>", "<|startoftranscript|>"] + ["<|x|>"] * 1))
    config = json.loads((other / "config.json").read_text())
    config["decoder_start_token_id"] = 3
    (other / "config.json").write_text(json.dumps(config))
    base = ("whisper", "--data-dir", short, "--output-dir", tmp_path / "second", "--report-to", "none")
    said = refused(capfd, *base, "--model-size", "tiny", "--tokenizer", tokenizer / "tokenizer.json")
    assert "the model knows several languages, and is to be told which\nhint: --language en" in said
    assert "they do not belong together\nhint: tokenizer.json and model.safetensors of the same folder" in refused(
        capfd, *base, "--model", other
    )
    (other / "tokenizer.json").unlink()
    assert "has no tokenizer.json\nhint:" in refused(capfd, *base, "--model", other)
    weights = load_file(model / "model.safetensors")
    weights["model.decoder.layer_norm.weight"][0] = math.nan
    (other / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    assert "`model.decoder.layer_norm.weight` of" in refused(capfd, *base, "--model", other)
    assert "is a model of type whisper\nhint: one that `train tts` made" in refused(
        capfd, "tts", "--data-dir", short, "--output-dir", tmp_path / "third", "--model", model
    )


def test_without_torch_it_says_how_to_get_it(tmp_path: Path) -> None:
    """A Python without anything, and the command that is to train with it."""
    built = os.environ.get("FEEDWATER_BUILT")
    if not built:
        pytest.skip("needs the command itself: `cargo xtask python`")
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = bare / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def asked(recipe: str, *more: str, python: str) -> subprocess.CompletedProcess[str]:
        line = [str(Path(built or "") / "feedwater"), "train", recipe, "--data-dir", "data", *more]
        return subprocess.run(line, env={**environment, "FEEDWATER_PYTHON": python}, capture_output=True, text=True)

    said = asked("lm", python=str(python))
    assert said.returncode == 2
    assert f"error: the Python at `{python}` has no package feedwater\nhint: `{python} -m pip install" in said.stderr
    said = asked("whisper", "--engine", "torch", python=str(tmp_path / "none"))
    assert "there is no Python that could be started as" in said.stderr and "--engine native, which needs none" in said.stderr
    # Nothing is said of Python where it is not needed.
    said = asked("whisper", python=str(python))
    assert "Python" not in said.stderr and "`data`" in said.stderr
