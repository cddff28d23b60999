"""What is the time going into?

A thread looks at the stack of the one that makes batches, now and then, and says what it sees: which stage of making a
batch, which call, and where in the user's own code. A call into C has no frame, so the text of the expression that is being
run is looked at as well. Each place in the code is judged once and remembered.

How often it looks follows from what looking usually takes, one part in four hundred: the first look at a place, which reads
its source, is not what the others wait for. The first looks of all come quickly, since a short run has no others.

A call into C that keeps the interpreter's lock keeps the looking thread waiting too; a look counts for the time between looks
and for what it had to wait, so that such calls are not missed. A thread that waits asks for the lock after 5 ms only, and
anew whenever the lock was let go of meanwhile and taken back: a call that ends sooner would be blamed on the next that lets
go of the lock, and a loop that does so often would never be looked at. So it is asked for sooner, as long as no other thread
is at work that this would slow down.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import random
import re
import sys
import sysconfig
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .record import spent_nanos

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
_SHARE = 400
_QUICK_LOOKS = 100
_DEEPEST = 200
_MOST_PLACES = 20_000
_MOST_WEIGHT = 5
_ASK_SECONDS = 0.0005
# Where nothing was looked at for so long, nobody needs to be asked soon.
_IDLE_SECONDS = 1.0
_USUAL_ASK_SECONDS = sys.getswitchinterval()
_sleep = time.sleep
# A thread that stands in one of these does not work but waits for something.
_WAITING = frozenset(
    "threading queue selectors socket multiprocessing.connection multiprocessing.pool concurrent.futures.thread".split()
) | {__name__, f"{__package__}.hooks"}  # the latter sleeps for a script

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
    loads: bool
    by_code: str | None
    call: str
    passes_on: bool
    at: str


class Seen(NamedTuple):
    """What a look at a stack says."""

    stage: str
    call: str
    at: str


# By identity: the hash of a code object is one of all its parts. The code is kept, so that no other takes its place.
_places: dict[tuple[int, int], tuple[CodeType, Place]] = {}
_texts: dict[tuple[int, int], tuple[CodeType, str, str | None]] = {}


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
    names: Mapping[str, Any]


def snapshot(frame: FrameType | None) -> list[Frame]:
    """A stack down to what the observer called, the innermost frame first."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < _DEEPEST:
        names = frame.f_globals
        frames.append(Frame(frame.f_code, frame.f_lasti, names))
        if names.get("__package__") == __package__ and len(frames) > 1:
            break
        frame = frame.f_back
    return frames


def _line(frame: Frame) -> int:
    lines = frame.code.co_lines()
    return next((line for begin, end, line in lines if begin <= frame.instruction < end and line), frame.code.co_firstlineno)


def _expression(frame: Frame) -> str:
    """The text that is being run, as exactly as this Python knows it."""
    code = frame.code
    positions = getattr(code, "co_positions", None)
    if positions is not None:
        here = next(itertools.islice(positions(), frame.instruction // 2, None), (None,) * 4)
        line, last, column, end = here
        if line is not None and column is not None and end is not None:
            text = linecache.getline(code.co_filename, line).encode()
            return text[column : end if last == line else None].decode(errors="replace").strip()
    return linecache.getline(code.co_filename, _line(frame)).strip()


def _text(frame: Frame) -> tuple[str, str | None]:
    """The text that is being run, and the stage that it speaks of. Reads the source."""
    key = (id(frame.code), frame.instruction)
    known = _texts.get(key)
    if known is None:
        if len(_texts) > _MOST_PLACES:
            _texts.clear()
        text = _expression(frame)[:300]
        known = _texts[key] = (frame.code, text, next((stage for pattern, stage in _TEXTS if pattern.search(text)), None))
    return known[1:]


def _place(frame: Frame) -> Place:
    code, instruction, names = frame
    key = (id(code), instruction)
    known = _places.get(key)
    if known is not None:
        return known[1]
    if len(_places) > _MOST_PLACES:
        _places.clear()
    filename = code.co_filename
    library = is_library(filename)
    module = str(names.get("__name__", ""))
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
    if "." in name:
        call = name.removesuffix(".__call__").removesuffix(".__init__")
    else:
        call = name if not library else f"{module.split('.')[0]}.{name}"
    place = Place(
        library,
        filename.startswith(_OWN),
        # A module that is loaded says so in two ways, by the version of Python.
        module == "importlib._bootstrap" or filename == "<frozen importlib._bootstrap>",
        by_code,
        call,
        _PASS_ON.fullmatch(code.co_name) is not None,
        f"{os.path.basename(filename)}:{_line(frame)}",
    )
    _places[key] = (code, place)
    return place


def look(frames: list[Frame], default: str) -> Seen:
    """Says what a stack is at. `default` is the stage where nothing gives it away."""
    places = [_place(frame) for frame in frames]
    # What a module's first use loads is none of its work.
    stage = "import" if any(place.loads for place in places) else None
    called = ""
    innermost = True
    for frame, place in zip(frames, places, strict=True):
        if place.own:
            if not innermost:
                break
            continue
        if stage is None:
            # Library code is full of words that mean something else there: its text counts only where it calls into C.
            if place.library:
                stage = place.by_code or (_text(frame)[1] if innermost else None)
            elif innermost:
                stage = _text(frame)[1] or place.by_code
            else:
                stage = place.by_code or _text(frame)[1]
        if not place.library:
            if not called:
                match = re.match(r"[\w.]+(?=\()", _text(frame)[0])
                called = match.group() if match else place.call
            return Seen(stage or default, called, place.at)
        if not place.passes_on:
            called = place.call
        innermost = False
    return Seen(stage or default, called, "")


_asks_soon = False


def ask_soon(soon: bool) -> None:
    """How soon a thread that waits for the interpreter's lock asks for it. What the script has set stays."""
    global _asks_soon
    if soon == _asks_soon:
        return
    before, after = (_USUAL_ASK_SECONDS, _ASK_SECONDS) if soon else (_ASK_SECONDS, _USUAL_ASK_SECONDS)
    if abs(sys.getswitchinterval() - before) < 1e-6:
        sys.setswitchinterval(after)
        _asks_soon = soon
    elif not soon:
        _asks_soon = False


class Sampler:
    """Looks at one thread while it makes batches.

    `phase` is what that thread is at: empty where there is nothing to look at. Where several processes do the same, each
    looks so much less often.
    """

    def __init__(self, thread: int, alike: int = 1) -> None:
        self.thread = thread
        self.alike = max(alike, 1)
        self.phase = ""
        self.seen: Counter[tuple[str, str, str, str]] = Counter()
        self.recent: list[str] = []
        self.spent_nanos = 0
        # Of its own: the script's random numbers stay as they are.
        self._dice = random.Random(0)
        self._costs: deque[int] = deque(maxlen=9)
        self._pid = 0

    def start(self) -> None:
        """Starts looking, once in a process."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        threading.Thread(target=self._loop, name="feedwater-stacks", daemon=True).start()

    def enter(self, phase: str) -> None:
        """The thread begins with something else."""
        self.phase = phase

    def take(self) -> Counter[tuple[str, str, str, str]]:
        """What was seen since the last time: phase, stage, call and place, with microseconds."""
        self.recent.clear()
        seen, self.seen = self.seen, Counter()
        return seen

    def stop(self) -> None:
        """There is nothing to look at any more."""
        self.phase, self._pid = "", 0
        ask_soon(False)

    def _peek(self) -> tuple[list[Frame], bool]:
        """The thread's stack, and whether all others wait for something. Keeps no frame, which would keep what is in it."""
        threads = sys._current_frames()
        # With this frame among its own variables, it would stay until garbage is collected, and all others with it.
        threads.pop(threading.get_ident(), None)
        others = (top.f_globals.get("__name__") for thread, top in threads.items() if thread != self.thread)
        return snapshot(threads.get(self.thread)), all(module in _WAITING for module in others)

    def _loop(self) -> None:
        ask_soon(self._peek()[1])
        try:
            self._look_on()
        finally:
            ask_soon(False)

    def _look_on(self) -> None:
        least = min(_LEAST_INTERVAL_SECONDS * self.alike, _MOST_INTERVAL_SECONDS)
        interval, looks, idle = least, 0, 0.0
        while self._pid:
            slept = time.perf_counter_ns()
            # Uneven, so as not to meet every step at the same place.
            _sleep(interval * self._dice.uniform(0.5, 1.5))
            phase = self.phase
            if not phase:
                idle += interval
                if idle > _IDLE_SECONDS:
                    ask_soon(False)
                continue
            idle = 0.0
            began = spent_nanos()
            try:
                frames, alone = self._peek()
                now = time.perf_counter_ns()
                # It may have gone on meanwhile.
                if not frames or self.phase != phase:
                    continue
                # Longer than a few times is not the lock but a core that was missing, which says nothing.
                micros = min(now - slept, round(interval * _MOST_WEIGHT * 1e9)) // 1000
                seen = look(frames, "batch" if phase == "collate" else "transform")
                self.seen[(phase, seen.stage, seen.call, seen.at)] += max(micros, 1)
                self.recent.append(seen.stage)
                ask_soon(alone and self._pid != 0)
            except Exception:  # noqa: BLE001
                continue
            finally:
                self._costs.append(spent_nanos() - began)
                self.spent_nanos += self._costs[-1]
            looks += 1
            if looks * self.alike >= _QUICK_LOOKS:
                usual = sorted(self._costs)[len(self._costs) // 2] / 1e9
                interval = min(max(least, _SHARE * usual), _MOST_INTERVAL_SECONDS)
