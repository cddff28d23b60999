"""Does the observer see the true cause, and does the script not see the observer?"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.alone

ATTACH = Path(__file__).parents[1] / "feedwater" / "attach"
SCRIPTS = Path(__file__).parent / "scripts"
BUILT = Path(__file__).parents[2] / "target" / "release" / "feedwater"
COMMAND = os.environ.get("FEEDWATER_COMMAND") or (str(BUILT) if BUILT.exists() else shutil.which("feedwater"))


def environment(record: Path | None, **more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("FEEDWATER_")}
    if record is not None:
        env["PYTHONPATH"] = str(ATTACH)
        env["FEEDWATER_ATTACH_RECORD"] = str(record)
        env["FEEDWATER_ATTACH_LOG"] = str(record) + ".log"
    return {**env, **more}


def run(record: Path | None, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *command)
    env = environment(record, **more)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


class Seen:
    """A record, read back."""

    def __init__(self, path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.path = path
        self.run = lines[0]["run"]
        self.steps = [line for line in lines if "step" in line]
        self.calls = next((line["calls"] for line in lines if "calls" in line), [])
        self.end = next((line["end"] for line in lines if "end" in line), None)

    def work(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for step in self.steps:
            for stage, nanos in step.get("input", {}).get("work_nanos", {}).items():
                total[stage] = total.get(stage, 0) + nanos
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def marks(self) -> list[str | None]:
        return [step.get("mark") for step in self.steps]

    def report(self) -> dict[str, Any]:
        if COMMAND is None:
            pytest.skip("no feedwater command")
        done = subprocess.run([COMMAND, "report", self.path, "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["damage"] == []
        return report


def observe(record: Path, *command: str | Path, **more: str) -> Seen:
    done = run(record, *command, **more)
    assert done.returncode == 0, done.stderr
    log = Path(f"{record}.log")
    assert not log.exists(), log.read_text()
    return Seen(record)


def line_of(script: str, text: str) -> str:
    lines = (SCRIPTS / script).read_text().splitlines()
    return f"{script}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


# The four recipes


def test_audio_that_workers_decode(tmp_path: Path) -> None:
    pytest.importorskip("librosa")
    command = (SCRIPTS / "whisper_like.py", tmp_path, "--format", "ogg", "--seconds", "90", "--steps", "26")
    seen = observe(tmp_path / "run.jsonl", *command)
    assert len(seen.steps) == 26
    settings = seen.run["settings"]
    assert (settings["loader"], settings["threads"], settings["prefetch"], settings["batch_size"]) == ("torch", 2, 4, 8)
    assert next(iter(seen.work())) == "decode"
    top = seen.calls[0]
    expected = ("decode", "librosa.load", line_of("whisper_like.py", "librosa.load(self"))
    assert (top["stage"], top["call"], top["at"]) == expected
    assert seen.steps[5]["rows"] == 8
    slowest = [slow["key"] for step in seen.steps for slow in step["input"]["slowest"]]
    assert slowest and all(key.endswith(".ogg") for key in slowest)
    assert seen.report()["bound"]["by"] == "input"


def test_text_that_the_loop_tokenizes(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    seen = observe(tmp_path / "run.jsonl", SCRIPTS / "text_like.py", "--steps", "28", "--words", "10000")
    assert seen.run["settings"]["threads"] == 0
    assert next(iter(seen.work())) == "tokenize", (seen.work(), seen.calls[:4])
    assert seen.calls[0]["call"] == "tokenizer.encode"
    assert seen.calls[0]["at"] == line_of("text_like.py", "tokenizer.encode(")
    report = seen.report()
    assert (report["bound"]["by"], report["bound"]["part"]) == ("input", "tokenize")


@pytest.mark.parametrize(("workers", "start"), [("0", None), ("2", "spawn")])
def test_features_that_are_augmented(tmp_path: Path, workers: str, start: str | None) -> None:
    command = [SCRIPTS / "npy_like.py", tmp_path, "--steps", "26", "--workers", workers] + (["--start", start] if start else [])
    seen = observe(tmp_path / "run.jsonl", *command)
    assert len(seen.steps) == 26
    assert all(step["rows"] == 64 and "work_nanos" in step["input"] for step in seen.steps)
    assert next(iter(seen.work())) == "augment"
    assert seen.calls[0]["call"] == "np.random.randn"
    assert seen.calls[0]["at"] == line_of("npy_like.py", "np.random.randn(")
    assert seen.report()["bound"]["by"] == "input"


def test_a_model_that_is_the_limit(tmp_path: Path) -> None:
    command = (SCRIPTS / "compute_bound.py", "--evaluate", "--save", tmp_path / "model.pt")
    seen = observe(tmp_path / "run.jsonl", *command)
    assert len(seen.steps) == 50
    assert {step.get("epoch", 0) for step in seen.steps} == {0, 1}
    # Evaluation after each epoch belongs to the epoch's last step.
    assert [at for at, mark in enumerate(seen.marks()) if mark] == [24, 49]
    report = seen.report()
    assert report["bound"]["by"] == "compute"
    assert all(step["compute_nanos"] > 0 and step["optimizer_nanos"] > 0 for step in seen.steps)


# What the script must not notice

SMALL = ("compute_bound.py", "--epochs", "1", "--steps", "6", "--width", "16")


def small(record: Path | None, **more: str) -> subprocess.CompletedProcess[str]:
    return run(record, SCRIPTS / SMALL[0], *SMALL[1:], **more)


def test_output_is_the_same_and_each_rank_has_its_record(tmp_path: Path) -> None:
    alone, observed = small(None), small(tmp_path / "run.jsonl", RANK="1")
    assert (observed.returncode, observed.stdout, observed.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert len(Seen(tmp_path / "run.jsonl.rank1").steps) == 6
    assert not (tmp_path / "run.jsonl").exists()


def test_a_record_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = small(tmp_path / "no" / "folder" / "run.jsonl", FEEDWATER_ATTACH_LOG=str(log))
    assert done.returncode == 0 and done.stdout.startswith("loss") and done.stderr == ""
    assert "FileNotFoundError" in log.read_text()


FAILS = """
from torch.utils.data import DataLoader, Dataset
class Broken(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        if index == 5: raise KeyError("sample 5")
        return index
try:
    for batch in DataLoader(Broken(), batch_size=2, num_workers=1): pass
except KeyError as error:
    print(error)
for batch in DataLoader(Broken(), batch_size=2): pass
"""


def test_errors_read_as_they_would(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    alone, observed = run(None, script), run(tmp_path / "run.jsonl", script)
    assert "KeyError: 'sample 5'" in alone.stderr and "Broken" not in alone.stdout.splitlines()[0]
    assert (observed.returncode, observed.stdout, observed.stderr) == (alone.returncode, alone.stdout, alone.stderr)


INTERRUPTED = """
import time, torch
from torch.utils.data import DataLoader
try:
    for step, batch in enumerate(DataLoader(range(10**6))):
        time.sleep(0.001)
        if step == 50: print("ready", flush=True)
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_who_ends_the_command_ends_the_script(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(0.1)\n")
    profile = [sys.executable, "-m", "feedwater", "profile", "--record", str(tmp_path / "r.jsonl"), "--"]
    with subprocess.Popen([*profile, sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.terminate()
        assert process.wait(10) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_control_c_ends_it_as_it_would(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", INTERRUPTED]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(record), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert out == "cleaned up\n" and err.rstrip().endswith("KeyboardInterrupt") and str(ATTACH) not in err
    assert Seen(record).end is not None


STOPPED = """
import atexit, multiprocessing, sys, time, torch
from torch.utils.data import DataLoader
atexit.register(lambda: print("at exit", len(multiprocessing.active_children())))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for batch in DataLoader(torch.arange(10000.0), batch_size=1, num_workers=2, persistent_workers=True):
        model(batch.reshape(1, 1)).sum().backward()
        optimizer.step()
finally:
    print("finally")
print("never")
"""


def test_after_the_last_step_batches_are_replayed_and_the_script_ends(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    record = tmp_path / "run.jsonl"
    done = run(record, script, FEEDWATER_ATTACH_MAX_STEPS="25", FEEDWATER_ATTACH_REPLAY="7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "finally\nat exit 0\n", "")
    seen = Seen(record)
    assert seen.marks() == [None] * 25 + ["replay"] * 7
    assert seen.end["stopped"] == "max_steps"
    assert seen.report()["steps"] >= 20


PLAIN = """
import sys, os, json, __main__
names = [name for name in sys.modules if "torch" in name]
print(json.dumps([sys.argv, sys.path, names, __main__.__name__, sys.excepthook is sys.__excepthook__]))
import time; print(time.sleep)
try:
    import observer
except ImportError: print("none")
sys.exit(3)
"""


def test_a_script_without_torch_is_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    record = tmp_path / "run.jsonl"
    alone, observed = run(None, script, "a b"), run(record, script, "a b")
    assert (observed.returncode, observed.stdout, observed.stderr) == (3, alone.stdout, alone.stderr)
    assert not record.exists()


def test_another_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.other = __file__")
    path = os.pathsep.join((str(ATTACH), str(tmp_path)))
    code = "import sys, sitecustomize; print(sys.other == sitecustomize.__file__, '_feedwater_attach' in sys.modules)"
    done = run(tmp_path / "run.jsonl", "-c", code, PYTHONPATH=path)
    assert done.stdout == "True True\n", done.stderr


def test_children_leave_the_record_alone(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, *{[str(SCRIPTS / SMALL[0]), *SMALL[1:]]!r}])"
    done = run(tmp_path / "run.jsonl", "-c", code)
    assert done.stdout.startswith("loss") and done.stderr == ""
    assert list(tmp_path.iterdir()) == []


OTHER_LOADER = """
import sys, torch
class Batches:
    def __init__(self): self.left = 30
    def __iter__(self): return self
    def __next__(self):
        self.left -= 1
        if self.left < 0: raise StopIteration
        self.last_input = {"work_nanos": {"decode": 1000 + self.left}}
        return torch.zeros(4, 2)
hooks = sys.modules["_feedwater_attach.hooks"]
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = Batches()
for batch in hooks.observe_iterator(batches, {"loader": "other", "threads": 3}, batches):
    def closure():
        loss = model(batch).sum()
        loss.backward()
        return loss
    optimizer.step(closure)
"""


def test_another_loader_says_itself_how_batches_are_made(tmp_path: Path) -> None:
    seen = observe(tmp_path / "run.jsonl", "-c", OTHER_LOADER)
    assert seen.run["settings"] == {"loader": "other", "threads": 3}
    assert [step["input"]["work_nanos"]["decode"] for step in seen.steps] == list(range(1029, 999, -1))
    # A closure's forward and backward are the model's, not the optimizer's.
    assert all(step["compute_nanos"] > 0 and step["rows"] == 4 for step in seen.steps)


OURS = """
import sys, torch, feedwater as fw
loader = fw.open(sys.argv[1]).decode(16_000).log_mel(80).batch(2).torch()
model = torch.nn.Linear(3000, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with fw.profile() as p:
    for epoch in range(2):
        for batch in loader:
            model(batch["input_features"]).sum().backward()
            optimizer.step()
assert "steps" in p.verdict()
"""


def test_our_own_loader_is_seen_and_a_profile_within_reads_the_same_record(tmp_path: Path, morse: Path) -> None:
    seen = observe(tmp_path / "run.jsonl", "-c", OURS, morse)
    assert seen.run["settings"]["loader"] == "feedwater"
    assert len(seen.steps) == 44
    assert all({"decode", "log_mel"} <= step["input"]["work_nanos"].keys() for step in seen.steps)


# Parts by themselves


@pytest.fixture
def parts() -> Any:
    package = types.ModuleType("_attach_parts")
    package.__path__ = [str(ATTACH)]
    sys.modules["_attach_parts"] = package
    return lambda name: importlib.import_module(f"_attach_parts.{name}")


class Loader:
    """Something that iterators belong to."""


def finished(run: Any, path: Path) -> Seen:
    run.finish()
    return Seen(path)


def serve(run: Any, watch: Any) -> None:
    run.ask(watch)
    run.got(watch, None)


def optimize(run: Any) -> None:
    run.optimizer_ends(run.optimizer_begins())


def test_a_loader_that_was_tried_out_before_is_not_the_one_that_counts(parts: Any, tmp_path: Path) -> None:
    # Lightning asks the validation loader for two batches first, and keeps its iterator.
    run = parts("run").Run(str(tmp_path / "run.jsonl"), 0, 0, pytest.fail)
    run.optimizers = 1
    loaders = Loader(), Loader()
    tried, trained = (run.watch(loader, {"loader": str(at)}, None, run.clock.mark()) for at, loader in enumerate(loaders))
    serve(run, tried)
    serve(run, tried)
    for _ in range(10):
        serve(run, trained)
        optimize(run)
    seen = finished(run, tmp_path / "run.jsonl")
    assert seen.run["settings"]["loader"] == "1"
    # The last has not ended.
    assert [step["step"] for step in seen.steps] == list(range(9))


def test_steps_too_short_to_observe_are_observed_now_and_then(parts: Any, tmp_path: Path) -> None:
    run = parts("run").Run(str(tmp_path / "run.jsonl"), 0, 0, pytest.fail)
    run.optimizers = 1
    loader = Loader()
    watch = run.watch(loader, {"loader": "short"}, None, run.clock.mark())
    for _ in range(500):
        if run.here():
            serve(run, watch)
            optimize(run)
    # Enough for a verdict, then a rest: these steps consist of being observed.
    assert 64 <= len(finished(run, tmp_path / "run.jsonl").steps) < 200


class Event:
    """An event of a device that is a second behind."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.done = False

    def record(self) -> None:
        Event.now += 10.0
        self.at = Event.now

    def query(self) -> bool:
        return self.done

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_events_tell_the_time_once_they_have_passed(parts: Any) -> None:
    clock = parts("record").Clock()
    assert clock.name == "host" and clock.mark()[1] is None
    clock.use_events(Event, lambda: False)
    marks = [clock.mark() for _ in range(3)]
    assert clock.name == "host+events" and not clock.passed(marks)
    for _, event in marks:
        event.done = True
    assert clock.passed(marks)
    assert clock.offsets(marks[0], marks[1:], True) == [10_000_000, 20_000_000]
    # Before they have passed, and where one lacks, it is the host's time.
    assert clock.offsets(marks[0], marks[1:], False)[0] == marks[1][0] - marks[0][0]
    clock.release(marks)
    assert clock.mark()[1] is marks[2][1]


def test_copies_to_a_device_are_seen(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = parts("hooks")

    class Tensor:
        def __init__(self, is_cuda: bool = False) -> None:
            self.is_cuda = is_cuda

        def to(self, device: str) -> Tensor:
            return Tensor(device == "cuda")

        def cuda(self) -> Tensor:
            return Tensor(True)

        def copy_(self, other: Tensor) -> Tensor:
            return self

    spans: list[str] = []
    clock = types.SimpleNamespace(mark=lambda: (0, None))
    fake = types.SimpleNamespace(here=lambda: True, clock=clock, span=lambda kind, begin: spans.append(kind))
    monkeypatch.setattr(hooks, "_run", fake)
    hooks.patch_copies(types.SimpleNamespace(Tensor=Tensor, compiler=types.SimpleNamespace(is_dynamo_compiling=bool)))
    Tensor().to("cpu")
    Tensor(True).to("cuda")
    Tensor().copy_(Tensor())
    assert spans == []
    Tensor().to("cuda")
    Tensor().cuda()
    Tensor(True).copy_(Tensor())
    assert spans == ["copy"] * 3


def test_no_moment_counts_twice(parts: Any) -> None:
    share_out = parts("record").share_out
    spans = [("wait", -5, 10), ("compute", 20, 60), ("copy", 30, 40), ("optimizer", 50, 80), ("compute", 90, 200)]
    assert share_out(100, spans) == {"wait": 10, "copy": 10, "sync": 0, "compute": 40, "optimizer": 20}


@pytest.mark.parametrize(
    ("source", "stage", "call"),
    [
        ("x = np.load(path)", "read", "np.load"),
        ("audio, rate = sf.read(path)", "decode", "sf.read"),
        ("ids = self.tokenizer(text)", "tokenize", "self.tokenizer"),
        ("y = soxr.resample(x, 1, 2)", "resample", "soxr.resample"),
        ("x = x + torch.randn(4)", "augment", "torch.randn"),
        ("m = torch.stft(x)", "log_mel", "torch.stft"),
        ("b = pad_sequence(x)", "batch", "pad_sequence"),
        ("q = quantize(x)", "transform", "quantize"),
    ],
)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="expressions are told apart from 3.11 on")
def test_calls_without_a_frame_are_known_by_their_text(parts: Any, source: str, stage: str, call: str) -> None:
    stacks = parts("stacks")
    import linecache

    name = f"/home/someone/{stage}.py"
    linecache.cache[name] = (len(source), None, [source + "\n"], name)
    code = compile(source + "\n", name, "exec")
    called = call.rsplit(".", 1)[-1]
    # The last call of the line, as the interpreter stands in it.
    import dis

    at = max(instruction.offset for instruction in dis.get_instructions(code) if instruction.opname.startswith("CALL"))
    seen = stacks.look([stacks.Frame(code, at, {"__name__": "__main__"})], "transform")
    assert (seen.stage, seen.at) == (stage, f"{stage}.py:1")
    assert seen.call.endswith(called)


@pytest.fixture
def usual_switch() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def soon(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def test_a_call_that_keeps_the_lock_is_not_blamed_on_the_next_that_lets_go_of_it(parts: Any, usual_switch: float) -> None:
    sampler = parts("stacks").Sampler(threading.get_ident())
    sampler.start()
    sampler.enter("loop")
    numbers = list(range(200_000))
    until = time.monotonic() + 2
    while time.monotonic() < until:
        sum(numbers)
        os.stat(".")
    sampler.stop()
    blamed: Counter[str] = Counter()
    for (_, _, call, _), micros in sampler.take().items():
        blamed[call] += micros
    # Half of it and more was blamed on the line behind it, which takes a thousandth as long.
    assert blamed["sum"] > 4 * blamed["os.stat"], blamed
    assert soon(lambda: sys.getswitchinterval() == usual_switch)


def test_a_look_keeps_nothing_of_what_it_saw(parts: Any) -> None:
    sampler = parts("stacks").Sampler(threading.get_ident())

    class Large:
        """What a function works on."""

    def work() -> weakref.ref[Large]:
        large = Large()
        looks = threading.Thread(target=lambda: [sampler._peek() for _ in range(10)])
        looks.start()
        looks.join()
        return weakref.ref(large)

    gc.disable()
    try:
        assert work()() is None
    finally:
        gc.enable()


def test_steps_are_kept_back_until_enough_was_seen_to_say_what_they_took(parts: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run = parts("run").Run(str(path), 0, 0, pytest.fail)
    run.optimizers = 1
    loader = Loader()
    watch = run.watch(loader, {"loader": "one"}, None, run.clock.mark())

    def serve_made(stage: str, micros: int) -> None:
        run.ask(watch)
        seen = [["getitem", stage, stage, "a.py:1", micros]]
        run.probe.last = {"getitem": 1_000_000, "collate": 0, "rows": 4, "seen": seen}
        run.got(watch, None)
        optimize(run)

    def shares() -> list[float]:
        run._writer.flush()
        works = [step["input"]["work_nanos"] for step in Seen(path).steps] if path.exists() and path.stat().st_size else []
        return [work.get("decode", 0) / sum(work.values()) for work in works]

    # The first look met what is hardly ever met.
    serve_made("tokenize", 5_000)
    for _ in range(8):
        serve_made("decode", 5_000)
    assert shares() == []
    for _ in range(9):
        serve_made("decode", 20_000)
    written = shares()
    assert written and written[0] > 0.9, written
    before = len(written)
    # Who wants to know now gets what there is.
    run.flush()
    assert len(shares()) >= before
    run.finish()


def test_the_lock_is_asked_for_as_ever_where_other_threads_work(parts: Any, usual_switch: float) -> None:
    sampler = parts("stacks").Sampler(threading.get_ident())
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(1000))

    sampler.start()
    sampler.enter("loop")
    assert soon(lambda: sys.getswitchinterval() < usual_switch)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert soon(lambda: sys.getswitchinterval() == usual_switch)
    finally:
        over.set()
        thread.join()
    # What a script sets is its own.
    sys.setswitchinterval(0.002)
    looked = sampler.seen.total()
    assert soon(lambda: sampler.seen.total() > looked)
    assert sys.getswitchinterval() == pytest.approx(0.002)
    sampler.stop()
    assert sys.getswitchinterval() == pytest.approx(0.002)
