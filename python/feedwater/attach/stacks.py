"""What is the time going into?

A thread looks at the stack of the one that makes batches, now and then, and says what it sees: which stage of making a
batch, which call, and where in the user's own code. A call into C has no frame, so the text of the expression that is being
run is looked at as well. Each place in the code is judged once and remembered.

How often it looks follows from what looking usually takes, one part in two hundred: the first look at a place, which reads
its source, is not what the others wait for. The first looks of all come quickly, since a short run has no others. A call
into C that keeps the interpreter's lock keeps the looking thread waiting too; a look counts for the time between looks and
for what it had to wait, so that such calls are not missed.
"""

from __future__ import annotations

import functools
import linecache
import os
import random
import re
import sys
import sysconfig
import threading
import time
from collections import Counter, deque
from types import CodeType, FrameType
from typing import NamedTuple

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    | {os.path.dirname(os.path.realpath(os.__file__)) + os.sep}
)
_LEAST_INTERVAL_SECONDS = 0.01
_MOST_INTERVAL_SECONDS = 0.2
_SHARE = 200
_QUICK_LOOKS = 200
_DEEPEST = 200
_MOST_WEIGHT = 5
_sleep = time.sleep

# A library's modules, by the beginning of their names. The first that fits.
_MODULES: tuple[tuple[str, str], ...] = tuple(
    (name, stage)
    for stage, names in (
        ("tokenize", "tokenizers sentencepiece tiktoken transformers.tokenization transformers.tokenization_utils"),
        ("resample", "soxr resampy samplerate scipy.signal._signaltools.resample"),
        ("log_mel", "transformers.audio_utils librosa.core.spectrum librosa.feature librosa.filters kaldi_native_fbank"),
        ("log_mel", "torchaudio.compliance.kaldi python_speech_features whisper.audio"),
        ("decode", "soundfile audioread av torchcodec pydub scipy.io.wavfile librosa.core.audio torchaudio.io"),
        ("decode", "torchaudio._backend torchaudio.backend torchaudio._torchcodec PIL imageio decord torchvision.io"),
        ("decode", "zlib gzip bz2 lzma"),
        ("batch", "torch.utils.data._utils.collate torch.nn.utils.rnn transformers.data.data_collator"),
        ("augment", "random numpy.random audiomentations torch_audiomentations albumentations imgaug"),
        ("read", "numpy.lib._npyio_impl numpy.lib.npyio numpy.lib.format numpy.lib._format_impl numpy._core.memmap"),
        ("read", "numpy.core.memmap torch.serialization datasets pyarrow h5py lmdb sqlite3 fsspec s3fs zipfile tarfile"),
        ("read", "pathlib codecs mmap shutil urllib requests http ssl webdataset pandas.io"),
    )
    for name in names.split()
)

# Words of a function's name.
_WORDS: dict[str, str] = {
    word: stage
    for stage, words in (
        ("augment", "noise mask masks masking augment augmentation augmentations specaugment jitter perturb mixup cutmix"),
        ("tokenize", "tokenize tokenise tokenization"),
        ("resample", "resample resampler resampling"),
        ("log_mel", "stft istft melspectrogram spectrogram fbank mfcc mel logmel"),
        ("batch", "collate collator collation pad padding"),
        ("decode", "decode decoder"),
        ("read", "read memmap mmap"),
    )
    for word in words.split()
}

# The text of an expression.
_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b\w*tok(enizer)?\(|tok\w*\.(encode|tokenize|batch_encode)|encode_(batch|plus)|\.tokenize\("), "tokenize"),
    (re.compile(r"EncodeAsIds|encode_ordinary"), "tokenize"),
    (re.compile(r"resampl|soxr"), "resample"),
    (re.compile(r"librosa\.load|\bsf\.\w*read|soundfile\.|torchaudio\.load|audioread|\bav\.open|wavfile\.read"), "decode"),
    (re.compile(r"imread|imdecode|Image\.open|decode_(jpeg|png|image|audio|video)|AudioSegment|decompress"), "decode"),
    (re.compile(r"\b(np|numpy|torch|pickle|json)\.load\b|memmap|fromfile|\bopen\(|\.read(line|lines|_bytes|_text)?\("), "read"),
    (re.compile(r"stft|\bmel|_mel|mfcc|fbank|spectrogram|feature_extractor\(|extractor\("), "log_mel"),
    (re.compile(r"\brandom\b|rng\.|\brand(n|int|perm)?\(|_like_?\(.*rand|(?<!attention_)\bmasks?\b|noise|augment|jitter"), "augment"),
    (re.compile(r"collate|pad_sequence|\bpad\(|\b(torch|np|numpy)\.(stack|concatenate|cat)\("), "batch"),
)

# Frames that only pass a call on say nothing about what is called.
_PASS_ON = re.compile(r"wrapper|wrapped|inner|decorate_context|__getattr__|import_module|_call_impl|_wrapped_call_impl|<.*>")


class Place(NamedTuple):
    """What a place in the code is."""

    library: bool
    own: bool
    by_code: str | None
    by_text: str | None
    call: str
    expression: str
    passes_on: bool


class Seen(NamedTuple):
    """What a look at a stack says."""

    stage: str
    call: str
    at: str


# By identity: the hash of a code object is one of all its parts. The code is kept, so that no other takes its place.
_places: dict[tuple[int, int], tuple[CodeType, Place]] = {}


@functools.cache
def is_library(filename: str) -> bool:
    """Whether a file belongs to Python or to something that was installed."""
    if filename.startswith(("<ipython-input", "<stdin>")):
        return False
    if filename.startswith("<") or "site-packages" in filename or "dist-packages" in filename:
        return True
    return filename.startswith(_LIBRARIES) or os.path.realpath(filename).startswith(_LIBRARIES)


class Frame(NamedTuple):
    """A frame as it was: the thread goes on while it is looked at."""

    code: CodeType
    instruction: int
    line: int
    module: str


def snapshot(frame: FrameType | None) -> list[Frame]:
    """A stack, the innermost frame first."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < _DEEPEST:
        frames.append(Frame(frame.f_code, frame.f_lasti, frame.f_lineno or 0, frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return frames


def _expression(frame: Frame) -> str:
    """The text that is being run, as exactly as this Python knows it."""
    code = frame.code
    positions = getattr(code, "co_positions", None)
    if positions is not None:
        for at, (line, last, column, end) in enumerate(positions()):
            if at * 2 == frame.instruction:
                if line is None or column is None or end is None:
                    break
                text = linecache.getline(code.co_filename, line).encode()
                if last != line:
                    return text[column:].decode(errors="replace").strip()
                return text[column:end].decode(errors="replace").strip()
    return linecache.getline(code.co_filename, frame.line).strip()


def _place(frame: Frame) -> Place:
    code = frame.code
    key = (id(code), frame.instruction)
    known = _places.get(key)
    if known is not None:
        return known[1]
    if len(_places) > 20_000:
        _places.clear()
    filename = code.co_filename
    library = is_library(filename)
    module = str(frame.module)
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    by_code = None
    if library:
        for prefix, stage in _MODULES:
            if module == prefix or module.startswith((prefix + ".", prefix + "_")):
                by_code = stage
                break
        if by_code is None and module.startswith("transformers."):
            last = module.rsplit(".", 1)[-1]
            by_code = {"tokenization": "tokenize", "feature": "log_mel"}.get(last.split("_")[0])
    words = re.findall(r"[a-z]+|[A-Z][a-z]*", code.co_name)
    by_name = next((_WORDS[word.lower()] for word in words if word.lower() in _WORDS), None)
    # Where a module does several things, the function's name knows better: padding is not tokenizing.
    if by_name is not None and (by_code is None or by_name in ("resample", "log_mel", "batch")):
        by_code = by_name
    text = _expression(frame)[:300]
    by_text = next((stage for pattern, stage in _TEXTS if pattern.search(text)), None)
    if "." in name:
        call = name.removesuffix(".__call__").removesuffix(".__init__")
    else:
        call = name if not library else f"{module.split('.')[0]}.{name}"
    place = Place(
        library, filename.startswith(_OWN), by_code, by_text, call, text, _PASS_ON.fullmatch(code.co_name) is not None
    )
    _places[key] = (code, place)
    return place


def look(frames: list[Frame], default: str) -> Seen:
    """Says what a stack is at. `default` is the stage where nothing gives it away."""
    # What a module's first use loads is none of its work.
    stage = "import" if any(frame.module == "importlib._bootstrap" for frame in frames) else None
    called = ""
    innermost = True
    for frame in frames:
        place = _place(frame)
        if place.own:
            if not innermost:
                break
            continue
        if stage is None:
            by_text_first = innermost and not place.library
            # Library code is full of words that mean something else there: its text counts only where it calls into C.
            by_text = place.by_text if innermost or not place.library else None
            stage = by_text or place.by_code if by_text_first else place.by_code or by_text
        if not place.library:
            if not called:
                match = re.match(r"[\w.]+(?=\()", place.expression)
                called = match.group() if match else place.call
            return Seen(stage or default, called, f"{os.path.basename(frame.code.co_filename)}:{frame.line}")
        if not place.passes_on:
            called = place.call
        innermost = False
    return Seen(stage or default, called, "")


class Sampler:
    """Looks at one thread while it makes batches.

    `phase` is what that thread is at: empty where there is nothing to look at.
    """

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.phase = ""
        self.seen: Counter[tuple[str, str, str, str]] = Counter()
        self.recent: list[str] = []
        self.spent_nanos = 0
        # Of its own: the script's random numbers stay as they are.
        self._dice = random.Random(0)
        self._costs: deque[int] = deque(maxlen=9)
        self._started = False
        self._pid = 0

    def start(self) -> None:
        """Starts looking, once in a process."""
        if self._started and self._pid == os.getpid():
            return
        self._started, self._pid = True, os.getpid()
        threading.Thread(target=self._loop, name="feedwater-stacks", daemon=True).start()

    def enter(self, phase: str) -> None:
        """The thread begins with something else."""
        self.phase = phase

    def take(self) -> Counter[tuple[str, str, str, str]]:
        """What was seen since the last time: phase, stage, call and place, with microseconds."""
        self.recent.clear()
        seen, self.seen = self.seen, Counter()
        return seen

    def _loop(self) -> None:
        interval, looks = _LEAST_INTERVAL_SECONDS, 0
        while True:
            slept = time.perf_counter_ns()
            # Uneven, so as not to meet every step at the same place.
            _sleep(interval * self._dice.uniform(0.5, 1.5))
            phase = self.phase
            if not phase:
                continue
            began = time.thread_time_ns()
            try:
                frames = snapshot(sys._current_frames().get(self.thread))
                now = time.perf_counter_ns()
                # It may have gone on meanwhile.
                if not frames or self.phase != phase:
                    continue
                # Longer than a few times is not the lock but a core that was missing, which says nothing.
                micros = min(now - slept, round(interval * _MOST_WEIGHT * 1e9)) // 1000
                seen = look(frames, "batch" if phase == "collate" else "transform")
                self.seen[(phase, seen.stage, seen.call, seen.at)] += max(micros, 1)
                self.recent.append(seen.stage)
            except Exception:  # noqa: BLE001
                continue
            finally:
                self._costs.append(time.thread_time_ns() - began)
                self.spent_nanos += self._costs[-1]
            looks += 1
            if looks >= _QUICK_LOOKS:
                usual = sorted(self._costs)[len(self._costs) // 2] / 1e9
                interval = min(max(_LEAST_INTERVAL_SECONDS, _SHARE * usual), _MOST_INTERVAL_SECONDS)
