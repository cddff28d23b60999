"""What a pipeline promises, seen from Python."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import feedwater as fw
import numpy
import pytest
import soundfile
import torch
from conftest import run
from transformers import WhisperFeatureExtractor


def speech(morse: Path, tokenizer: Path) -> fw.Pipeline:
    return fw.open(morse).decode(16_000).log_mel(80).tokenize(tokenizer).batch(5).seed(7)


def drained(loader: Any) -> list[tuple[list[str], torch.Tensor]]:
    return [(batch["keys"], torch.as_tensor(batch["input_features"]).clone()) for batch in loader]


def same(one: list[tuple[list[str], torch.Tensor]], two: list[tuple[list[str], torch.Tensor]]) -> bool:
    return len(one) == len(two) and all(
        keys == others and torch.equal(rows, other) for (keys, rows), (others, other) in zip(one, two)
    )


def test_features_are_those_of_transformers(morse: Path) -> None:
    extractor = WhisperFeatureExtractor(feature_size=80)
    seen = 0
    for batch in fw.open(morse).decode(16_000).log_mel(80).batch(8).numpy():
        for key, features in zip(batch["keys"], batch["input_features"]):
            sound, rate = soundfile.read(next(morse.rglob(Path(key).name)), dtype="float32")
            wanted = extractor._np_extract_fbank_features(
                numpy.pad(sound, (0, 480_000 - len(sound)))[None], device="cpu"
            )[0]
            assert rate == 16_000
            assert numpy.abs(features - wanted).max() < 1e-5
            seen += 1
    assert seen == 43


def test_ids_are_those_of_tokenizers(documents: Path, tokenizer: Path) -> None:
    import json

    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    texts = [json.loads(line)["text"] for line in documents.read_text(encoding="utf-8").splitlines()]
    loader = fw.text(documents, tokenizer, packed=False, batch_size=7).shuffle(False).numpy()
    rows = [
        row[:length].tolist() for batch in loader for row, length in zip(batch["input_ids"], batch["lengths"])
    ]
    assert rows == [reference.encode(text).ids for text in texts]


def test_language_models_take_a_batch_as_it_is(documents: Path, tokenizer: Path) -> None:
    def model(input_ids: Any, labels: Any, attention_mask: Any = None) -> Any:
        return labels

    padded = next(iter(fw.text(documents, tokenizer, packed=False, batch_size=3).torch()))
    labels, mask = model(**padded), padded["attention_mask"].bool()
    assert (labels[mask] == padded["input_ids"][mask]).all()
    assert (labels[~mask] == -100).all()
    packed = next(iter(fw.text(documents, tokenizer, length=32, batch_size=3).torch()))
    assert model(**packed).shape == packed["document_ids"].shape == (3, 32)


def test_an_iterator_that_another_one_ended_says_so(morse: Path, tokenizer: Path) -> None:
    loader = speech(morse, tokenizer).numpy()
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another one over the same loader"):
        next(first)


@pytest.mark.parametrize("threads", [1, 3])
def test_order_and_numbers_do_not_depend_on_threads(morse: Path, tokenizer: Path, threads: int) -> None:
    pipeline = speech(morse, tokenizer).noise(snr_db=(5, 20))
    assert same(drained(pipeline.threads(2).numpy()), drained(pipeline.threads(threads).torch()))


def test_each_for_is_the_next_epoch(morse: Path, tokenizer: Path) -> None:
    loader = speech(morse, tokenizer).numpy()
    first, second = drained(loader), drained(loader)
    assert sorted(key for keys, _ in first for key in keys) == sorted(key for keys, _ in second for key in keys)
    assert [keys for keys, _ in first] != [keys for keys, _ in second]
    loader.set_epoch(0)
    assert same(drained(loader), first)


def test_a_state_of_every_step_gives_the_rest(morse: Path, tokenizer: Path) -> None:
    pipeline = speech(morse, tokenizer)
    whole = drained(pipeline.torch())
    loader = pipeline.torch()
    states = []
    for _ in loader:
        states.append(loader.state_dict())
    assert len(states) == len(loader) == 9
    for step, state in enumerate(states[:-1]):
        again = pipeline.threads(1).torch()
        again.load_state_dict(state)
        assert again.steps_consumed == step + 1
        assert same(drained(again), whole[step + 1 :])


def test_ranks_are_slices_of_one_order(morse: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = speech(morse, tokenizer)
    one = [key for keys, _ in drained(pipeline.batch(6).numpy()) for key in keys]
    two = [drained(pipeline.batch(3).ranks(rank, 2).numpy()) for rank in range(2)]
    assert sorted(one) == sorted(key for rank in two for keys, _ in rank for key in keys)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert same(drained(pipeline.batch(3).numpy()), two[1])
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK must be a number"):
        pipeline.numpy()


def test_models_take_a_batch_as_it_is(morse: Path, tokenizer: Path) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    from transformers.models.whisper.modeling_whisper import shift_tokens_right

    config = WhisperConfig(
        vocab_size=400, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=80,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    batch = next(iter(fw.whisper(morse, tokenizer, language="en", batch_size=4).torch()))
    assert model(**batch).loss.item() > 0
    assert set(batch) == {"input_features", "labels"}
    labels = batch["labels"]
    # The model puts the start token in front itself.
    assert labels[0, :3].tolist() == [2, 3, 4]
    shifted = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
    assert shifted[0, :4].tolist() == [1, 2, 3, 4]
    for row, length in zip(labels, batch["label_lengths"]):
        assert row[length - 1] == 0
        assert (row[length:] == -100).all()
    with pytest.raises(KeyError, match="there are input_features, labels"):
        batch["nothing"]


def test_arrays_are_padded_and_masked(arrays: Path) -> None:
    loader = fw.npy(arrays, batch_size=4).shuffle(False).torch()
    seen = 0
    for batch in loader:
        features, mask = batch["input_features"], batch["attention_mask"]
        assert mask.sum(1).tolist() == batch["lengths"]
        for key, row, length in zip(batch["keys"], features, batch["lengths"]):
            assert torch.equal(row[:length], torch.from_numpy(numpy.load(arrays / key)))
            assert (row[length:] == 0).all()
            seen += 1
        assert batch["labels"].shape == (len(batch["keys"]),)
    assert seen == 30
    assert loader.classes == ["even", "odd"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numbers_are_handed_over_without_a_copy(arrays: Path, dtype: str) -> None:
    pipeline = fw.npy(arrays, batch_size=4, dtype=dtype)
    batch = next(iter(pipeline.dlpack()))
    tensor = batch["input_features"]
    assert tensor.dtype == dtype
    view = torch.from_dlpack(tensor)
    assert view.data_ptr() == tensor.data_ptr
    assert view.dtype == getattr(torch, dtype)
    view[0, 0, 0] = 5.0
    assert torch.from_dlpack(tensor)[0, 0, 0] == 5.0
    if dtype == "bfloat16":
        with pytest.raises(TypeError, match="numpy has no bfloat16"):
            numpy.asarray(tensor)
    else:
        assert numpy.asarray(tensor).__array_interface__["data"] == (tensor.data_ptr, False)
        assert numpy.from_dlpack(tensor)[0, 0, 0] == 5.0


def test_a_kept_batch_is_not_written_over(arrays: Path) -> None:
    loader = fw.npy(arrays, batch_size=3).torch()
    kept = list(loader)
    assert same(
        [(batch["keys"], batch["input_features"]) for batch in kept],
        drained(fw.npy(arrays, batch_size=3).numpy()),
    )


def test_a_function_of_ones_own(morse: Path) -> None:
    def quieter(sample: dict[str, Any]) -> dict[str, Any]:
        sample["audio"] = sample["audio"] * 0.5
        sample["loudness"] = float(numpy.abs(sample["audio"]).max())
        return sample

    loader = fw.open(morse).decode(16_000).map(quieter).batch(4).shuffle(False).numpy()
    batch = next(iter(loader))
    plain = next(iter(fw.open(morse).decode(16_000).batch(4).shuffle(False).numpy()))
    assert numpy.allclose(batch["input_values"], plain["input_values"] * 0.5)
    assert numpy.allclose(batch["loudness"], numpy.abs(batch["input_values"]).max(1))
    names = [stage["name"] for stage in loader.report()["stages"]]
    assert "gil" in names and any("quieter" in name for name in names)


def test_what_a_function_raises_is_told_with_its_place(morse: Path) -> None:
    def broken(sample: dict[str, Any]) -> dict[str, Any]:
        raise LookupError("no such thing")

    loader = fw.open(morse).decode(16_000).map(broken).batch(4).policy("fail").numpy()
    with pytest.raises(RuntimeError, match=r"no such thing.*test_pipeline.py:\d+"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda p: p.batch(0), ValueError, "a batch of 0 samples"),
        (lambda p: p.threads(0), ValueError, "0 threads"),
        (lambda p: p.prefetch(0), ValueError, "a prefetch of 0"),
        (lambda p: p.ranks(2, 2), ValueError, "rank 2 of 2"),
        (lambda p: p.batch(4, pad=0), ValueError, r"`.batch\(…, pad=8\)`"),
        (lambda p: p.policy("skip", ceiling=2.0), ValueError, r"`.policy\(\"skip\", ceiling=0.05\)`"),
        (lambda p: p.chunk(30, overlap=40), ValueError, r"`.chunk\(30.0, overlap=2.0\)`"),
        (lambda p: p.batch(4, dtype="int8"), ValueError, "`dtype` is `int8`"),
        (lambda p: p.batch(4, frames=9), ValueError, "a batch has one of"),
        (lambda p: p.batch(4, pad="widest"), ValueError, "`pad` is `widest`"),
        (lambda p: p.policy("hope"), ValueError, "`policy` is `hope`"),
        (lambda p: p.chunk(without_times="guess"), ValueError, "`without_times` is `guess`"),
        (lambda p: p.noise(), ValueError, "either `snr_db` or `deviation`"),
        (lambda p: p.tokenize("nowhere.json"), (OSError, ValueError), "nowhere.json"),
        (lambda p: p.batch("many"), TypeError, "size"),
    ],
)
def test_a_wrong_setting_is_an_error_when_the_loader_is_made(
    morse: Path, wrong: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as raised:
        wrong(fw.open(morse).decode(16_000)).numpy()
    assert "::" not in str(raised.value), "a hint in the words of the engine"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fw.open(tmp_path / "nowhere").batch(2).numpy()


def test_a_state_of_something_else_is_refused(morse: Path, tokenizer: Path) -> None:
    state = speech(morse, tokenizer).numpy().state_dict()
    other = speech(morse, tokenizer).seed(8).numpy()
    with pytest.raises(ValueError, match="cannot be resumed here"):
        other.load_state_dict(state)


def test_length_is_steps_and_unknown_where_it_is(documents: Path, tokenizer: Path) -> None:
    assert len(fw.text(documents, tokenizer, packed=False, batch_size=7)) == 120
    assert len(fw.text(documents, tokenizer, packed=False, batch_size=7).numpy()) == 18
    with pytest.raises(TypeError, match="not known before it is over"):
        len(fw.text(documents, tokenizer, length=64).numpy())


def engine_threads() -> int:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("threads are counted in /proc")
    return sum((task / "comm").read_text().startswith("feedwater-") for task in tasks.iterdir())


def become(count: int) -> bool:
    """Whether there are so many soon: a thread gives itself its name, and the system takes it off its list when it has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        # One that goes while it is looked at.
        with contextlib.suppress(OSError):
            if engine_threads() == count:
                return True
    return False


def test_a_loader_that_is_dropped_half_way_leaves_no_thread(morse: Path, tokenizer: Path) -> None:
    gc.collect()
    assert become(0)
    loader = speech(morse, tokenizer).threads(3).torch()
    reading = iter(loader)
    next(reading)
    assert become(3)
    del reading
    assert become(0)
    del loader


def test_an_exception_in_the_loop_ends_the_threads(morse: Path, tokenizer: Path) -> None:
    gc.collect()
    assert become(0)

    def training() -> None:
        for _ in speech(morse, tokenizer).torch():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        training()
    gc.collect()
    assert become(0)


def test_a_loader_is_pickled_with_its_place(morse: Path, tokenizer: Path) -> None:
    loader = speech(morse, tokenizer).torch()
    reading = iter(loader)
    next(reading)
    again = pickle.loads(pickle.dumps(loader))
    assert same(drained(again), drained(reading))


def test_two_threads_share_a_loader(morse: Path, tokenizer: Path) -> None:
    reading = iter(speech(morse, tokenizer).numpy())
    seen: list[str] = []

    def read() -> None:
        for batch in reading:
            seen.extend(batch["keys"])

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == 43


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_told_that_its_threads_are_elsewhere(morse: Path, tokenizer: Path) -> None:
    loader = speech(morse, tokenizer).numpy()
    reading = iter(loader)
    next(reading)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(reading)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "before the process was forked" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert len(drained(reading)) == 8


def test_ctrl_c_ends_a_wait(morse: Path, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(f"""
import threading, feedwater as fw
gate = threading.Event()
def hangs(sample):
    print("waiting", flush=True)
    gate.wait()
    return sample
loader = fw.open({str(morse)!r}).decode(16_000).map(hangs).threads(1).batch(2).numpy()
try:
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted", flush=True)
gate.set()
""")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


def test_an_interpreter_ends_in_the_midst_of_an_epoch(morse: Path, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"""
import feedwater as fw
loader = fw.open({str(morse)!r}).decode(16_000).map(lambda sample: sample).log_mel(80).batch(2).torch()
reading = iter(loader)
next(reading)
print("done")
""")
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_the_command_is_in_the_wheel(morse: Path) -> None:
    shown = run("-m", "feedwater", "inspect", morse)
    assert shown.returncode == 0 and "43" in shown.stdout
    assert run("-m", "feedwater", "no-such-command").returncode == 2
    assert run("-m", "feedwater", "--version").stdout.strip().endswith(fw.__version__)
