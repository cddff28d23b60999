"""Feedwater and its peers on the same files, side by side.

    python compare.py --feedwater PATH [--data DIR] [--lanes audio,npy,text] [--repeats 3] [--quick]

Each runner is a process of its own that prints one JSON line (peers/measure.py). Round 0 warms the page cache, samples
memory and checks the outputs, and is not timed; then come the timed rounds, all runners by turns. Figures are medians.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil

import make_data

BENCH = Path(__file__).resolve().parent
RUN_TIMEOUT_SECONDS = 900
PACKAGES = (
    "torch transformers soundfile soxr numpy spdl-core spdl-io lhotse nvidia-dali-cuda130 grain datasets tokenizers"
).split()

# What is run: (name, module, flags). `W` stands for the number of workers. Rows marked "tuned" hold what an expert would
# write by hand around the peer: no FFT for padding, files read straight into the batch, a malloc that keeps its memory.
AUDIO = [
    ("torch DataLoader w0", "torch_audio", ""),
    ("torch DataLoader wW", "torch_audio", "--workers W"),
    ("SPDL threads W", "spdl_audio", "--workers W"),
    ("lhotse w0", "lhotse_audio", ""),
    ("lhotse wW", "lhotse_audio", "--workers W"),
    ("DALI CPU threads W", "dali_audio", "--workers W"),
    ("torch w0, tuned", "torch_audio", "--mel hand --keep-memory"),
    ("SPDL threads W, tuned", "spdl_audio", "--workers W --mel hand --keep-memory"),
    ("lhotse w0, tuned", "lhotse_audio", "--keep-memory"),
]
NPY = [
    ("torch DataLoader w0", "torch_npy", ""),
    ("torch DataLoader wW", "torch_npy", "--workers W"),
    ("SPDL by batch, threads W", "spdl_npy", "--workers W"),
    ("Grain threads W", "grain_npy", "--workers W"),
    ("torch w0, tuned", "torch_npy", "--load direct --keep-memory"),
    ("torch w0, tuned malloc", "torch_npy", "--keep-memory"),
    ("SPDL by batch, tuned", "spdl_npy", "--workers W --load direct --keep-memory"),
    ("Grain by batch, tuned", "grain_npy", "--workers W --load direct --keep-memory"),
]
TEXT = [
    ("torch DataLoader w0", "torch_text", ""),
    ("torch DataLoader wW", "torch_text", "--workers W"),
    ("datasets.map", "datasets_text", "--workers W"),
    ("datasets.map, serial", "datasets_text", "--workers W --parallel false"),
    ("encode_batch", "tokenizers_text", "--workers W --call encode_batch"),
    ("encode_batch, serial", "tokenizers_text", "--workers W --call encode_batch --parallel false"),
    ("encode_batch_fast", "tokenizers_text", "--workers W"),
    ("encode_batch_fast, serial", "tokenizers_text", "--workers W --parallel false"),
]


@dataclass
class Lane:
    name: str
    title: str
    data: Path
    batch_size: int
    rate_name: str
    check_name: str
    peers: list
    epochs: int = 1


@dataclass
class Row:
    name: str
    command: list
    runs: list = field(default_factory=list)
    failure: str = ""
    peak_mb: float = 0.0
    check: str = ""
    output_hash: str = ""
    dump: Path | None = None

    def rates(self, lane):
        return [rate(lane, run) for run in self.runs]


def rate(lane, run):
    """The figure that is compared: work done for each CPU second."""
    work = {"audio": run.get("audio_seconds", 0), "npy": run["clips"], "text": run.get("tokens", 0)}[lane.name]
    return (work or 0) / (1000 if lane.name == "text" else 1) / max(run["cpu_seconds"], 1e-9)


def lanes(wanted, data):
    audio = [("wav16k", "WAV 16 kHz"), ("flac16k", "FLAC 16 kHz"), ("mp3_44k", "MP3 44.1 kHz")]
    found = []
    if "audio" in wanted:
        for folder, title in audio:
            title += " -> Whisper log-mel [16, 80, 3000]"
            found.append(Lane("audio", title, data / folder, 16, "audio-s/CPU-s", "max diff", AUDIO))
    if "npy" in wanted:
        title = ".npy [T, 128] + noise + 2 masks -> padded batches of 64"
        # Sixteen batches of up to 65 MB: three passes, so that what a runner does once is not most of what is measured.
        found.append(Lane("npy", title, data / "npy", 64, "samples/CPU-s", "noise std, masked", NPY, epochs=3))
    if "text" in wanted:
        title = "JSONL -> BPE ids -> packed blocks [16, 512]"
        found.append(Lane("text", title, data / "text" / "text.jsonl", 16, "k tokens/CPU-s", "ids", TEXT))
    return found


def rows(lane, options):
    made = []
    # As the peers have rows with and without workers: one thread has the core's caches and vector units to itself.
    for threads in sorted({1, options.workers}) if options.feedwater else ():
        command = [str(options.feedwater), lane.name, "--data", str(lane.data), "--batch-size", str(lane.batch_size)]
        command += ["--threads", str(threads), "--epochs", str(lane.epochs)]
        if lane.name == "text":
            command += ["--tokenizer", str(lane.data.parent / "tokenizer.json")]
        made.append(Row(f"Feedwater threads {threads}", command))
    for name, module, flags in lane.peers:
        name, flags = (re.sub(r"\bW\b|(?<=w)W\b", str(options.workers), text) for text in (name, flags))
        command = [sys.executable, "-m", f"peers.{module}", "--data", str(lane.data), *flags.split()]
        made.append(Row(name, [*command, "--batch-size", str(lane.batch_size), "--epochs", str(lane.epochs), "--json"]))
    return made


# --- running ---------------------------------------------------------------------------------------------------------


def run_once(row, extra=(), sample_memory=False):
    """Runs a row's command. Returns its JSON line (or None, with the reason in the row) and what else was busy."""
    # Nothing that changes a peer's speed is set here: its settings live in its file.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    before, own_before, started = busy_seconds(), children_seconds(), time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen([*row.command, *extra], cwd=BENCH, stdout=out, stderr=err, env=environment)
        except OSError as error:
            row.failure = str(error)
            return None, 0.0
        if sample_memory:
            sampler = threading.Thread(target=watch_memory, args=(process.pid, row))
            sampler.start()
        try:
            code = process.wait(RUN_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            code = process.wait()
        if sample_memory:
            sampler.join()
        wall = time.perf_counter() - started
        others = busy_seconds() - before - (children_seconds() - own_before)
        out.seek(0)
        err.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
        if code != 0 or not lines:
            row.failure = reason(code, err.read())
            return None, 0.0
        return json.loads(lines[-1]), max(0.0, others) / (wall * psutil.cpu_count())


def reason(code, stderr):
    """The line of stderr that says most. A package that is missing reads "No module named ..."."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = r".*([Uu]nsupported|unimplemented|[Aa]ssert.* failed|No module named)"
    for pattern in (telling, r"(\w+\.)*\w*(Error|Exception)\b|error:"):
        if found := [line for line in lines if re.match(pattern, line)]:
            return f"exit {code}: {found[-1][:200]}"
    return f"exit {code}: {(lines or ['no output'])[-1][:200]}"


def busy_seconds():
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0) - getattr(times, "guest", 0)


def children_seconds():
    times = os.times()
    return times.children_user + times.children_system


def watch_memory(pid, row):
    """The highest sum of proportional memory (PSS) over a process and all below it, looked at 20 times a second."""
    while psutil.pid_exists(pid):
        total_kb = 0
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            for each in [process, *process.children(recursive=True)]:
                text = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
                total_kb += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE).group(1))
        except (psutil.Error, OSError, AttributeError):
            pass
        row.peak_mb = max(row.peak_mb, total_kb / 1024)
        time.sleep(0.05)


def run_lane(lane, options, scratch):
    made, noise = rows(lane, options), []
    for index, row in enumerate(made):
        note(f"{lane.title}: {row.name}, warm-up and check")
        row.dump = scratch / f"{lane.data.name}-{index}.npy"
        extra = ["--hash"] if lane.name == "text" else ["--dump", str(row.dump)]
        line, _ = run_once(row, extra, sample_memory=True)
        if line:
            row.output_hash = line.get("output_hash") or ""
            row.peak_mb = row.peak_mb or line["peak_rss_mb"]
    for repeat in range(options.repeats):
        # Another runner starts each round, so that none always follows the same neighbour.
        for row in made[repeat % len(made) :] + made[: repeat % len(made)]:
            if row.failure:
                continue
            note(f"{lane.title}: {row.name}, round {repeat + 1} of {options.repeats}")
            line, others = run_once(row)
            if line:
                row.runs.append(line)
                noise.append(others)
    return made, noise


def note(text):
    print(f"  {text}", file=sys.stderr, flush=True)


# --- checking --------------------------------------------------------------------------------------------------------


def check(lane, made):
    expected = {"audio": whisper_reference, "npy": lambda lane: None, "text": lambda lane: None}[lane.name](lane)
    hashes = [row.output_hash for row in made if row.output_hash and not row.name.startswith("Feedwater")]
    for row in made:
        if row.failure:
            continue
        if lane.name == "text":
            same = bool(hashes) and row.output_hash == max(hashes, key=hashes.count)
            row.check = ("same " if same else "DIFFERENT ") + row.output_hash[:8]
        elif not row.dump.exists():
            row.check = "no dump"
        elif lane.name == "audio":
            dump = np.load(row.dump)
            # Broadcasting a wrong shape would hide the fault.
            row.check = f"{np.abs(dump - expected).max():.1e}" if dump.shape == expected.shape else f"{dump.shape}"
        else:
            row.check = describe_augmentation(lane, np.load(row.dump))


def whisper_reference(lane):
    """transformers' WhisperFeatureExtractor on the first four clips, resampled (44.1 kHz) by soxr at its HQ setting."""
    import soundfile
    import soxr
    from transformers import WhisperFeatureExtractor

    extractor, features = WhisperFeatureExtractor(), []
    for path in first_files(lane):
        wave, from_rate = soundfile.read(path, dtype="float32")
        if from_rate != 16_000:
            wave = soxr.resample(wave, from_rate, 16_000, quality="HQ")
        features.append(extractor(wave, sampling_rate=16_000, return_tensors="np")["input_features"][0])
    return np.stack(features)


def describe_augmentation(lane, dump):
    """Is it the same work? The deviation of what was added, the share of frames masked, and clean padding."""
    added, masked, frames = [], 0, 0
    for row, path in zip(dump, first_files(lane), strict=True):
        original = np.load(path)
        if np.any(row[len(original) :]):
            return "padding is not 0"
        sample = row[: len(original)]
        gone = ~sample.any(axis=1)
        masked, frames = masked + int(gone.sum()), frames + len(original)
        added.append((sample - original)[~gone].ravel())
    return f"{np.concatenate(added).std():.4f}, {100 * masked / frames:.0f} %"


def first_files(lane):
    return sorted(path for path in lane.data.iterdir() if not path.name.startswith("."))[:4]


# --- printing --------------------------------------------------------------------------------------------------------


def print_lane(lane, made, noise):
    ours = max(
        (row for row in made if row.name.startswith("Feedwater") and row.runs),
        key=lambda row: statistics.median(row.rates(lane)),
        default=None,
    )
    mine = statistics.median(ours.rates(lane)) if ours else None
    per_second = {"audio": "clips/s", "npy": "samples/s", "text": "blocks/s"}[lane.name]
    table = [["", per_second, lane.rate_name, "spread", "first batch s", "peak MB", lane.check_name, "Feedwater is"]]
    failures = []
    for row in made:
        if row.failure or not row.runs:
            failures.append(f"{row.name:26} did not run: {row.failure}")
            continue
        rates = row.rates(lane)
        middle = statistics.median(rates)
        table.append([
            row.name,
            f"{statistics.median(run['clips'] / run['wall_seconds'] for run in row.runs):,.1f}",
            f"{middle:,.0f}",
            f"{100 * (max(rates) - min(rates)) / middle:.0f} %" if len(rates) > 1 else "-",
            f"{statistics.median(run['first_batch_seconds'] for run in row.runs):.3f}",
            f"{row.peak_mb:,.0f}",
            row.check,
            f"{mine / middle:.2f} x" if mine and row is not ours else "-",
        ])  # fmt: skip
    print(f"\n{lane.title}")
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        name, *cells = line
        cells = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  " + "  ".join([name.ljust(widths[0]), *cells]).rstrip())
    for failure in failures:
        print(f"  {failure}")
    if mine:
        for kind, wanted in (("best peer", True), ("best peer as usually written", False)):
            peers = [row for row in made if row.runs and not row.name.startswith("Feedwater")]
            rivals = [row for row in peers if wanted or "tuned" not in row.name]
            if rivals:
                best = max(rivals, key=lambda row: statistics.median(row.rates(lane)))
                print(f"  {ours.name} / {kind} ({best.name}): {mine / statistics.median(best.rates(lane)):.2f} x")
    if noise:
        shares = f"median {100 * statistics.median(noise):.0f} %, highest {100 * max(noise):.0f} %"
        warn = "  NOT QUIET: do not quote these figures" if statistics.median(noise) > 0.05 else ""
        print(f"  CPU used by others meanwhile: {shares} of the machine{warn}")


def machine():
    model = platform.processor()
    try:
        model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()).group(1)
    except (OSError, AttributeError):
        pass
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": model,
        "cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def print_machine(facts):
    print(f"{facts['cpu']}, {facts['usable_cores']} of {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}")
    print(f"python {facts['python']}, " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))


def run_facts(options, data):
    """Feedwater's own figures that have no peer: passed through as they are."""
    print("\nFeedwater alone", flush=True)
    command = [str(options.feedwater), "facts", "--data", str(data)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"  did not run: {error}")
        return []
    for line in done.stdout.splitlines():
        print(f"  {line}")
    if done.returncode != 0:
        print(f"  did not finish: {reason(done.returncode, done.stderr)}")
    return done.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=make_data.DEFAULT_OUT, help="made by make_data.py if missing")
    parser.add_argument("--feedwater", type=Path, help="the feedwater-bench binary")
    parser.add_argument("--lanes", default="audio,npy,text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="worker processes or threads, for all alike")
    parser.add_argument("--quick", action="store_true", help="a small data set and one round: a try, not a measurement")
    parser.add_argument("--out", type=Path, default=make_data.REPO / "target" / "bench-results.json")
    options = parser.parse_args()
    wanted = options.lanes.split(",")
    if unknown := set(wanted) - {"audio", "npy", "text"}:
        parser.error(f"unknown lane `{unknown.pop()}`\nhint: --lanes audio,npy,text")
    if options.quick:
        options.repeats = 1
    data = (options.data / "quick" if options.quick else options.data).resolve()
    make_data.make(data, options.quick)

    facts = machine()
    print_machine(facts)
    if options.feedwater and not options.feedwater.is_file():
        print(f"Feedwater is skipped: there is no `{options.feedwater}`")
        options.feedwater = None
    elif not options.feedwater:
        print("Feedwater is skipped: no --feedwater PATH was given")
    else:
        options.feedwater = options.feedwater.resolve()

    results = {"machine": facts, "repeats": options.repeats, "quick": options.quick, "lanes": []}
    with tempfile.TemporaryDirectory() as scratch:
        for lane in lanes(wanted, data):
            made, noise = run_lane(lane, options, Path(scratch))
            check(lane, made)
            print_lane(lane, made, noise)
            kept = ("name", "runs", "failure", "peak_mb", "check", "output_hash")
            results["lanes"].append({
                "lane": lane.name, "title": lane.title, "rate": lane.rate_name, "others_busy": noise,
                "rows": [{key: getattr(row, key) for key in kept} for row in made],
            })  # fmt: skip
    if options.feedwater:
        results["facts"] = run_facts(options, data)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1))
    print(f"\nall runs: {options.out}")


if __name__ == "__main__":
    main()
