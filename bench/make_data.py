"""Makes the files that every side of the benchmark reads.

    python make_data.py [OUT] [--quick]

Nothing is downloaded and nothing depends on the clock: the same versions (requirements.txt) give the same files.
What is already complete is left alone.

    wav16k/ flac16k/   the same clips, 16-bit mono 16 kHz, 5 to 30 s
    mp3_44k/           the same content at 44.1 kHz, mono, 128 kbit/s
    npy/               [T, 128] float32, T from 100 to 2000 with a long tail
    text/              text.jsonl ({"text": ...}) and tokenizer.json (byte-level BPE trained on it)
    manifest_1m.jsonl  a million NeMo lines; the paths cycle over wav16k/ and are relative to the manifest
    paths_1m.txt       the same paths, one a line
"""

import argparse
import json
from pathlib import Path

import numpy as np
import soundfile as sf
import soxr

REPO = Path(__file__).resolve().parent.parent
DEFAULT_OUT = REPO / "target" / "bench-data"
SEED = 20_26

FULL = {"clips": 200, "npy": 1000, "text_bytes": 20_000_000}
QUICK = {"clips": 32, "npy": 192, "text_bytes": 2_000_000}

RATE_HIGH = 44_100
RATE_LOW = 16_000


# --- audio -----------------------------------------------------------------------------------------------------------


def clip(rng):
    """One clip at 44.1 kHz: voiced and unvoiced syllables with formants, pauses, and a floor of room noise.

    It is made at the high rate with energy above 8 kHz, so a resampler has something to filter out and a lossless
    coder has real residuals to code.
    """
    total = int((5.0 + 25.0 * rng.beta(1.6, 2.4)) * RATE_HIGH)
    wave = np.zeros(total, dtype=np.float64)
    pitch = rng.uniform(90.0, 240.0)
    at = int(rng.uniform(0.05, 0.4) * RATE_HIGH)
    while True:
        length = int(rng.uniform(0.08, 0.28) * RATE_HIGH)
        if at + length >= total:
            break
        wave[at : at + length] += syllable(rng, length, pitch)
        pause = rng.uniform(0.25, 0.9) if rng.random() < 0.12 else rng.uniform(-0.03, 0.05)
        at += length + int(pause * RATE_HIGH)
        at = max(at, 0)
    wave += rng.standard_normal(total) * 10.0 ** rng.uniform(-3.4, -2.6)
    hum = 2 * np.pi * rng.choice([50.0, 60.0]) / RATE_HIGH
    wave += 10.0 ** rng.uniform(-4.0, -3.0) * np.sin(hum * np.arange(total))
    return wave * (rng.uniform(0.3, 0.9) / np.abs(wave).max())


def syllable(rng, length, pitch):
    time = np.arange(length) / RATE_HIGH
    noise = rng.standard_normal(length)
    freqs = np.fft.rfftfreq(length, 1.0 / RATE_HIGH)
    if rng.random() < 0.75:
        glide = pitch * (1.0 + rng.uniform(-0.15, 0.15) * time / time[-1] + 0.01 * np.sin(2 * np.pi * 5.5 * time))
        phase = np.cumsum(glide) / RATE_HIGH % 1.0
        source = np.where(phase < 0.6, 3.0 * phase**2 - 5.0 * phase**3, 0.0) * 8.0 + 0.05 * noise
        formants = [(rng.uniform(300, 850), 90), (rng.uniform(900, 2300), 130), (rng.uniform(2300, 3400), 200)]
        tilt = 1.0 / (1.0 + (freqs / 3000.0) ** 2)
    else:
        source = 0.4 * noise
        formants = [(rng.uniform(2500, 9000), 2500)]
        tilt = 1.0
    shape = sum(1.0 / (1.0 + ((freqs - centre) / width) ** 2) for centre, width in formants) + 0.02
    voiced = np.fft.irfft(np.fft.rfft(source) * shape * tilt, length)
    return voiced * np.sin(np.pi * np.arange(length) / length) ** 0.6


def make_audio(out, count):
    folders = {name: out / name for name in ("wav16k", "flac16k", "mp3_44k")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        high = clip(np.random.default_rng([SEED, 1, index])).astype(np.float32)
        low = np.clip(soxr.resample(high, RATE_HIGH, RATE_LOW, quality="VHQ"), -1.0, 1.0)
        name = f"clip{index:04d}"
        sf.write(folders["wav16k"] / f"{name}.wav", low, RATE_LOW, subtype="PCM_16")
        sf.write(folders["flac16k"] / f"{name}.flac", low, RATE_LOW, subtype="PCM_16")
        # On libsndfile's scale from 0 (320 kbit/s) to 1 (32 kbit/s), 0.67 is 128 kbit/s.
        sf.write(
            folders["mp3_44k"] / f"{name}.mp3", high, RATE_HIGH,
            format="MP3", subtype="MPEG_LAYER_III", bitrate_mode="CONSTANT", compression_level=0.67,
        )  # fmt: skip


# --- features --------------------------------------------------------------------------------------------------------


def make_npy(out, count):
    folder = out / "npy"
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        rng = np.random.default_rng([SEED, 2, index])
        frames = int(np.clip(100 * (1.0 + rng.pareto(0.9)), 100, 2000))
        np.save(folder / f"sample{index:05d}.npy", rng.standard_normal((frames, 128), dtype=np.float32))


# --- text ------------------------------------------------------------------------------------------------------------

COMMON = (
    "the of and to in a is that for it was on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know through back much "
    "before go good new write our used me man too any day same right look think also around another came come work "
    "three must because does part even place well such here take why things help put years different away again off "
    "went old number great tell men say small every found still between name should home big give air line set own "
    "under read last never us left end along while might next sound below saw something thought both few those always "
    "it's don't I'm we'll they've isn't couldn't he'd"
).split()
ONSET = "b c d f g h l m n p r s t v w st tr pl gr ch sh th br cl fl sp qu str".split()
NUCLEUS = "a e i o u ea ou ai ee io oo ie".split()
CODA = ["", "", "", *"n r s t l m d ck nd st ng rt x p".split()]
PREFIX = ["", "", "", "", "", *"re un in dis over pre con inter".split()]
SUFFIX = ["", "", "", "", *"s ed ing er ly tion ment ness able al ive ous ity ism".split()]
FOREIGN = [
    "café", "naïve", "Zürich", "déjà", "señor", "Łódź", "smörgåsbord", "façade", "Ångström", "São", "Москва", "привет",
    "αβγ", "東京", "日本語", "数据", "안녕하세요", "שלום", "مرحبا", "🙂", "🚀", "€", "£", "½", "10°C", "µm", "“quoted”", "…",
]  # fmt: skip


def pick(rng, options):
    return options[rng.integers(0, len(options))]


def vocabulary(rng, size):
    """Common English words first, then words formed as prefix + one to three syllables + suffix."""
    words, seen = list(COMMON), set(COMMON)
    while len(words) < size:
        syllables = pick(rng, [1, 1, 1, 2, 2, 2, 3])
        stem = "".join(pick(rng, ONSET) + pick(rng, NUCLEUS) + pick(rng, CODA) for _ in range(syllables))
        word = pick(rng, PREFIX) + stem + pick(rng, SUFFIX)
        if word not in seen:
            seen.add(word)
            words.append(word)
    return words


def number(rng):
    kind = rng.integers(0, 5)
    if kind == 0:
        return str(rng.integers(1800, 2030))
    if kind == 1:
        return f"{rng.integers(1, 1_000_000):,}"
    if kind == 2:
        return f"{rng.random() * 1000:.2f}"
    if kind == 3:
        return f"{rng.integers(0, 24)}:{rng.integers(0, 60):02d}"
    return f"{rng.integers(1, 100)}%"


def document(rng, words, cumulative):
    count = int(np.clip(rng.lognormal(4.9, 0.9), 5, 3000))
    picks = np.searchsorted(cumulative, rng.random(count), side="right").tolist()
    odd = rng.random(count).tolist()
    pieces, start, left = [], True, int(rng.integers(4, 25))
    for index, dice in zip(picks, odd, strict=True):
        if dice < 0.004:
            word = pick(rng, FOREIGN)
        elif dice < 0.016:
            word = number(rng)
        else:
            word = words[index]
            if start or dice > 0.985:
                word = word[0].upper() + word[1:]
        left -= 1
        start = left == 0
        if start:
            word += "?" if dice < 0.1 else "!" if dice < 0.13 else "."
            word += "\n\n" if dice > 0.85 else " "
            left = int(rng.integers(4, 25))
        else:
            word += ", " if 0.3 < dice < 0.37 else "; " if 0.40 < dice < 0.405 else " (" if 0.5 < dice < 0.503 else " "
        pieces.append(word)
    return "".join(pieces).strip()


def make_text(out, size):
    folder = out / "text"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([SEED, 3])
    words = vocabulary(rng, 30_000)
    chances = 1.0 / (np.arange(len(words)) + 2.7) ** 1.15
    cumulative = np.cumsum(chances / chances.sum())[:-1]
    written = 0
    with (folder / "text.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        while written < size:
            line = json.dumps({"text": document(rng, words, cumulative)}, ensure_ascii=False)
            file.write(line + "\n")
            written += len(line.encode()) + 1


def make_tokenizer(out):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=12_000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with (out / "text" / "text.jsonl").open(encoding="utf-8") as file:
        tokenizer.train_from_iterator((json.loads(line)["text"] for line in file), trainer)
    tokenizer.save(str(out / "text" / "tokenizer.json"))


# --- a million lines -------------------------------------------------------------------------------------------------


def make_million(out):
    clips = sorted((out / "wav16k").glob("*.wav"))
    rng = np.random.default_rng([SEED, 4])
    entries = []
    for path in clips:
        text = " ".join(pick(rng, COMMON) for _ in range(12))
        entries.append((f"wav16k/{path.name}", round(sf.info(path).duration, 3), text))
    with (out / "manifest_1m.jsonl").open("w", newline="\n") as manifest, (out / "paths_1m.txt").open(
        "w", newline="\n"
    ) as paths:
        for index in range(1_000_000):
            name, duration, text = entries[index % len(entries)]
            line = {"audio_filepath": name, "duration": duration, "text": f"{text} {index}"}
            manifest.write(json.dumps(line) + "\n")
            paths.write(name + "\n")


# --- all of it -------------------------------------------------------------------------------------------------------


def make(out, quick=False):
    size = QUICK if quick else FULL
    out.mkdir(parents=True, exist_ok=True)
    steps = [
        ("audio", lambda: make_audio(out, size["clips"])),
        ("npy", lambda: make_npy(out, size["npy"])),
        ("text", lambda: make_text(out, size["text_bytes"])),
        ("tokenizer", lambda: make_tokenizer(out)),
        ("million", lambda: make_million(out)),
    ]
    for name, step in steps:
        # A step that was cut short leaves no marker, and is made again from the start.
        marker = out / f".{name}.complete"
        if marker.exists():
            continue
        print(f"making {name} in {out}", flush=True)
        step()
        marker.touch()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--quick", action="store_true", help="a small set, for trying the benchmark out")
    options = parser.parse_args()
    make(options.out, options.quick)
