"""What is a pipeline in Python? The engine's, by the same words, and a loader that gives its batches.

A `Pipeline` only remembers what was said. It is put together, and everything wrong with it is told, when one of `numpy`,
`torch` and `dlpack` makes a `Loader` of it. So it can be changed, copied and pickled, and a loader can be made anew in
another process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from feedwater import _core
from feedwater._map import PythonMap
from feedwater.profiling import observed

if TYPE_CHECKING:
    import numpy
    import torch

    from feedwater.torch import TorchLoader

Array = TypeVar("Array")
"""What a batch holds: arrays of numpy, tensors of torch, or anything that speaks DLPack."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def open(path: str | os.PathLike[str]) -> Pipeline:  # noqa: A001 (the engine's word)
    """Starts a pipeline with what is at `path`, found by looking.

    A folder of sound with or without metadata, a manifest, a table, text, `.npy` files, tar shards, parquet, TFRecord or
    HDF5.
    """
    return Pipeline(Path(path))


class Pipeline:
    """What becomes of samples, step by step. Each method gives a new pipeline with one step more."""

    def __init__(self, path: Path, calls: tuple[Call, ...] = (), part: tuple[int, bool] | None = None) -> None:
        self._path = path
        self._calls = calls
        self._part = part

    def _with(self, name: str, *args: Any, **kwargs: Any) -> Pipeline:
        return Pipeline(self._path, (*self._calls, (name, args, kwargs)), self._part)

    def held_out(self, every: int = 20) -> Pipeline:
        """Only the samples that a model is tried on: one in `every`. A sample's key decides, so that adding some moves none."""
        return Pipeline(self._path, self._calls, (every, True))

    def without_held_out(self, every: int = 20) -> Pipeline:
        """Only the samples that are learned from: all but those of `held_out`."""
        return Pipeline(self._path, self._calls, (every, False))

    # What becomes of each sample.

    def decode(self, rate: int | str | None = 16_000) -> Pipeline:
        """Decodes sound to mono at `rate` samples a second (`None`: as it is), or arrays with `"npy"`."""
        if rate == "npy":
            return self._with("decode_npy")
        if isinstance(rate, str):
            raise ValueError(f'`decode` is `{rate}`\nhint: a rate such as 16_000, None, or "npy"')
        return self._with("decode_audio", rate)

    def chunk(self, seconds: float = 30.0, *, overlap: float = 0.0, without_times: str = "refuse") -> Pipeline:
        """Cuts long clips into windows.

        `without_times` says what becomes of a long clip whose text has no times: `refuse`, `drop`, `truncate` (its first
        window with the whole text) or `no_text`.
        """
        return self._with("chunk", float(seconds), float(overlap), without_times)

    def longest(self, seconds: float) -> Pipeline:
        """Clips that are longer are bad samples: what a model does not hear it must not learn to say."""
        return self._with("longest", float(seconds))

    def log_mel(self, bins: int = 80, *, pad_seconds: float | None = 30.0) -> Pipeline:
        """Sound to log-mel features, equal to transformers' `WhisperFeatureExtractor`.

        `pad_seconds=None` leaves them as long as the clip, for models that take any length.
        """
        return self._with("log_mel", bins, None if pad_seconds is None else float(pad_seconds))

    def tokenize(
        self,
        tokenizer: str | os.PathLike[str],
        *,
        prefix: Sequence[str] | None = None,
        suffix: Sequence[str] | None = None,
        max_tokens: int | None = None,
        into_field: str | None = None,
    ) -> Pipeline:
        """Text to token ids, by a `tokenizer.json` or a folder that has one.

        They go into `labels` where the samples have sound, else into `input_ids`, unless `into_field` says otherwise.
        `prefix` and `suffix` are tokens by name.
        """
        path = Path(tokenizer)
        if path.is_dir():
            path = path / "tokenizer.json"
        prefix = None if prefix is None else list(prefix)
        suffix = None if suffix is None else list(suffix)
        return self._with("tokenize", path, prefix, suffix, max_tokens, into_field)

    def noise(self, *, snr_db: tuple[float, float] | None = None, deviation: float | None = None) -> Pipeline:
        """Adds white noise: by a ratio to the signal drawn from a range, or of a standard deviation."""
        return self._with("noise", snr_db, deviation)

    def gain(self, least_db: float, most_db: float) -> Pipeline:
        """Louder or softer, by a number of decibels drawn from a range."""
        return self._with("gain", least_db, most_db)

    def time_shift(self, seconds: float) -> Pipeline:
        """Earlier or later, by up to so many seconds either way."""
        return self._with("time_shift", seconds)

    def spec_augment(
        self, *, time: tuple[int, float] = (0, 0.0), frequency: tuple[int, int] = (0, 0)
    ) -> Pipeline:
        """Masks features: so many stretches of time of up to a share each, so many bands of up to so many bins."""
        return self._with("spec_augment", time, frequency)

    def map(self, function: Callable[[dict[str, Any]], dict[str, Any]], *, name: str | None = None) -> Pipeline:
        """A function of your own, from a sample's fields to its fields.

        It gets a dictionary with `key` and the fields as they are at that point: sound and features as arrays of numpy,
        text as a string, token ids as a list. What it gives back replaces them. Only one thread at a time can be in
        Python: what the others wait is measured and reported as `gil`.

        `name` stands in reports, and for the function in a saved state.
        """
        name = name or getattr(function, "__qualname__", type(function).__qualname__)
        return self._with("map", name, PythonMap(function))

    # Who travels together.

    def batch(
        self,
        size: int | None = None,
        *,
        frames: int | None = None,
        tokens: int | None = None,
        packed: tuple[int, int] | None = None,
        buckets: int | None = None,
        pad: str | int | Sequence[int] | None = None,
        pad_fields: Mapping[str, str | int | Sequence[int]] | None = None,
        dtype: str = "float32",
        drop_last: bool = False,
        mask: bool = False,
    ) -> Pipeline:
        """How samples travel together: `size` of them, or as many as fit into `frames` or `tokens`, or `packed`.

        `packed=(512, 16)` lays documents end to end in 16 blocks of 512 tokens. `buckets=64` sorts 64 batches at a time by
        length, for less padding. `pad` is `"longest"`, a number to pad to a multiple of, or a list of lengths;
        `pad_fields` says it for a field. `dtype` is that of features: `float32`, `float16` or `bfloat16`. `mask=True` adds
        `attention_mask`.
        """
        keywords = {
            "size": size,
            "frames": frames,
            "tokens": tokens,
            "packed": packed,
            "buckets": buckets,
            "pad": list(pad) if isinstance(pad, (list, tuple)) else pad,
            "pad_fields": None if pad_fields is None else list(pad_fields.items()),
            "dtype": dtype,
            "drop_last": drop_last,
            "mask": mask,
        }
        return self._with("batch", **keywords)

    def shuffle(self, shuffle: bool = True) -> Pipeline:
        """Whether samples come in another order each epoch. They do unless this says no."""
        return self._with("shuffle", shuffle)

    def seed(self, seed: int) -> Pipeline:
        """What all randomness follows from."""
        return self._with("seed", seed)

    # How it runs.

    def threads(self, threads: int | str) -> Pipeline:
        """How many worker threads. Default: `"auto"`, as many as steps need, found out while they run.

        No more compute than this process may use cores; `LOCAL_WORLD_SIZE` processes share those of a machine. What was
        changed, why and what came of it is in `report()["tuning"]`.
        """
        return self._auto("threads", threads)

    def prefetch(self, batches: int | str) -> Pipeline:
        """How many batches are made ahead. Default: `"auto"`, 3 to begin with and more where that makes steps shorter."""
        return self._auto("prefetch", batches)

    def cpu_ceiling(self, share: float) -> Pipeline:
        """The share of the cores that threads may keep busy, where their number is not said. Default: all of them."""
        return self._with("cpu_ceiling", float(share))

    def _auto(self, name: str, value: int | str) -> Pipeline:
        if isinstance(value, str) and value != "auto":
            raise ValueError(f'`{name}` is `{value}`\nhint: a number, or "auto"')
        return self._with(name, None if isinstance(value, str) else value)

    def cache(
        self,
        level: str = "auto",
        *,
        folder: str | os.PathLike[str] | None = None,
        dtype: str | None = None,
        key: str = "path",
        most_bytes: int | None = None,
    ) -> Pipeline:
        """Keeps what is the same each time, so that the second epoch does not make it again.

        `level` is `raw` (the bytes of files), `decoded`, `features` (all up to the first stage that is random), `ram` (the
        same, in memory), `auto` (what pays) or `off`. `folder` defaults to `FEEDWATER_CACHE`, or `feedwater` in the user's
        folder for caches; several processes may share it. `dtype` is that of the numbers that are kept: `float32`,
        `float16` or `bfloat16`; unless it is said, batches are the same to the last bit. `key` says by what a file is
        known: `path` (with its size and time) or `content`. `most_bytes` is a ceiling: what was not used for longest goes.
        """
        return self._with("cache", level, None if folder is None else Path(folder), dtype, key, most_bytes)

    def budget_bytes(self, budget: int) -> Pipeline:
        """How many bytes the batches that are ready or under way may take. Default: 2 GiB."""
        return self._with("budget_bytes", budget)

    def stuck_after(self, seconds: float) -> Pipeline:
        """How long a sample may take in a stage before the run stops with an error that names both."""
        return self._with("stuck_after", float(seconds))

    def policy(
        self,
        bad: str = "skip",
        *,
        ceiling: float | None = None,
        quarantine: str | os.PathLike[str] | None = None,
    ) -> Pipeline:
        """What becomes of bad samples: `skip` leaves them out, counted and written down, up to a share; `fail` stops."""
        return self._with("policy", bad, ceiling, None if quarantine is None else Path(quarantine))

    def ranks(self, dp_rank: int, dp_world_size: int) -> Pipeline:
        """This process is one of several that train together. Default: `RANK` and `WORLD_SIZE`, as torchrun sets them.

        Ranks that split a model, not the data, must get the same batches: give them the same `dp_rank`.
        """
        return self._with("ranks", dp_rank, dp_world_size)

    # What comes out.

    def numpy(self) -> Loader[numpy.ndarray[Any, Any]]:
        """Batches of numpy arrays, which lie in the engine's memory."""
        return Loader(self, _to_numpy)

    def dlpack(self) -> Loader[_core.Tensor]:
        """Batches of tensors that speak DLPack: `jax.dlpack.from_dlpack(batch["input_features"])`."""
        return Loader(self, _as_it_is)

    def torch(self, device: str | torch.device | None = None, *, depth: int = 3) -> TorchLoader:
        """Batches of torch tensors on `device`. Default: the CPU.

        On a CUDA device, memory is pinned and copies run on a stream of their own, up to `depth` batches ahead.
        """
        from feedwater.torch import TorchLoader

        return TorchLoader(self, device=device, depth=depth)

    # For hosts, which have settings of their own.

    def says(self, name: str) -> bool:
        """Whether a method of this name was called."""
        return any(call == name for call, _, _ in self._calls)

    def with_batch_size(self, size: int) -> Pipeline:
        """The same, with so many samples (or blocks) in a batch; a budget of frames or tokens stays."""
        return self._batch_with(lambda said: {**said, **_sized(said, size)})

    def drop_last(self) -> Pipeline:
        """The same, without the last batch of an epoch where it is not full."""
        return self._batch_with(lambda said: {**said, "drop_last": True})

    def _batch_with(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Pipeline:
        said = [kwargs for name, _, kwargs in self._calls if name == "batch"]
        return self._with("batch", **change(said[-1] if said else {"size": 1}))

    def __len__(self) -> int:
        """How many samples there are, after long clips were cut."""
        return self.cache("off").build().samples()

    def __bool__(self) -> bool:
        return True

    def build(self, buffers: Callable[[int], Any] | None = None) -> _core.Pipeline:
        """Puts it together. Whatever is wrong is an error here."""
        try:
            builder = _core.Builder(self._path) if self._part is None else _core.Builder.part(self._path, *self._part)
        except ValueError as error:
            pattern = any(sign in str(self._path) for sign in "{*?[")
            if pattern or self._path.exists():
                raise
            raise FileNotFoundError(str(error)) from None
        if not any(name == "ranks" for name, _, _ in self._calls):
            builder.ranks(*_environment_ranks())
        builder.share_cores(max(_number("LOCAL_WORLD_SIZE", 1), 1))
        for name, args, kwargs in self._calls:
            getattr(builder, name)(*args, **kwargs)
        if buffers is not None:
            builder.buffers(buffers)
        return builder.build()

    def __repr__(self) -> str:
        def shown(call: Call) -> str:
            name, args, kwargs = call
            said = [repr(arg) for arg in args if arg is not None]
            said += [f"{key}={value!r}" for key, value in kwargs.items() if value not in (None, False)]
            return f".{name}({', '.join(said)})"

        part = "" if self._part is None else f".{'held_out' if self._part[1] else 'without_held_out'}({self._part[0]})"
        return f"open({str(self._path)!r}){part}" + "".join(shown(call) for call in self._calls)


def _sized(said: dict[str, Any], size: int) -> dict[str, Any]:
    if said.get("packed"):
        return {"packed": (said["packed"][0], size)}
    return {} if said.get("frames") or said.get("tokens") else {"size": size}


def _environment_ranks() -> tuple[int, int]:
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError as error:
        raise ValueError(f"{name} must be a number: {error}") from None


class Batch(dict[str, Array], Generic[Array]):
    """Tensors by the names that transformers' models call their arguments: `model(**batch)`.

    What models do not take is there by its name as well, and not among the arguments: `batch["keys"]`,
    `batch["lengths"]` (of the input's rows before they were padded), `batch["label_lengths"]`, `batch["texts"]`,
    `batch["valid"]`, `batch["epoch"]`, `batch["step"]`.
    """

    def __init__(self, tensors: Mapping[str, Array] | None = None, about: Mapping[str, Any] | None = None) -> None:
        super().__init__(tensors or {})
        self.about: dict[str, Any] = dict(about or {})

    def __missing__(self, name: str) -> Any:
        try:
            return self.about[name]
        except KeyError:
            known = ", ".join([*self, *self.about])
            raise KeyError(f"{name} (there are {known})") from None

    def to(self, *args: Any, **kwargs: Any) -> Batch[Array]:
        """The same batch with each tensor moved, as `Tensor.to` does it. Hosts look for this."""
        return self.replaced(lambda tensor: tensor.to(*args, **kwargs) if hasattr(tensor, "to") else tensor)

    def replaced(self, change: Callable[[Array], Array]) -> Batch[Array]:
        """The same batch with each tensor changed: moved to a device, for example."""
        return Batch({name: change(tensor) for name, tensor in self.items()}, self.about)


Taken = tuple[Batch[Array], str, str]
"""A batch, the place after it, and how it was made."""


def _to_numpy(tensor: _core.Tensor) -> numpy.ndarray[Any, Any]:
    import numpy

    return numpy.asarray(tensor)


def _as_it_is(tensor: _core.Tensor) -> _core.Tensor:
    return tensor


_LIVE: weakref.WeakSet[Loader[Any]] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Ends all threads while there is still a Python that they can be in."""
    for loader in list(_LIVE):
        # In a fork, they are in the other process.
        with contextlib.suppress(RuntimeError):
            loader._core.stop()
    _core.settle(3.0)


class Loader(Generic[Array]):
    """Batches, epoch after epoch. Each `for` over it is the next epoch, as with torch's `DataLoader`.

    `state_dict` says what was consumed, in a few hundred bytes; `load_state_dict` goes on from there with the identical
    rest. Epochs flow into each other: the first batches of the next are made before this one ends.
    """

    def __init__(self, pipeline: Pipeline, convert: Callable[[_core.Tensor], Array]) -> None:
        self.pipeline = pipeline
        self._convert = convert
        self._core = self._build()
        _LIVE.add(self)
        self._epoch = 0
        self._state = self._core.state()
        # Weak, so that who drops the loader in the midst of an epoch ends its threads there and then.
        self._reading: weakref.ref[_Reading[Array]] | None = None
        self._input: str | None = None

    def _build(self) -> _core.Pipeline:
        return self.pipeline.build()

    def __iter__(self) -> Iterator[Batch[Array]]:
        self._leave()
        reading = self._read(self._epoch)
        self._reading = weakref.ref(reading)
        return observed(self, reading)

    def _leave(self) -> None:
        """Ends the epoch that is being read, if there is one."""
        reading = self._reading() if self._reading is not None else None
        if reading is not None:
            reading.left = reading.begun and not reading.done
            reading.close()
        self._reading = None

    def _read(self, epoch: int) -> _Reading[Array]:
        return _Reading(self, epoch)

    def __len__(self) -> int:
        steps = self._core.steps()
        if steps is None:
            raise TypeError(
                "how many steps an epoch has is not known before it is over, where batches have a budget or are packed"
            )
        return steps

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `for` reads. Where a state of that epoch was loaded, it goes on in its midst."""
        self._epoch = int(epoch)

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` reads."""
        return self._epoch

    def state_dict(self) -> dict[str, Any]:
        """What was consumed so far: the place to go on from."""
        return cast("dict[str, Any]", json.loads(self._state))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state. The dataset, the pipeline, the seed and the global batch must be the same."""
        self._leave()
        text = json.dumps(dict(state))
        self._core.restore(text)
        self._state = text
        self._epoch = int(state["epoch"])

    @property
    def last_input(self) -> dict[str, Any] | None:
        """How the last batch was made: `input` of a step in docs/record.md."""
        return None if self._input is None else cast("dict[str, Any]", json.loads(self._input))

    @property
    def steps_consumed(self) -> int:
        """How many batches of the epoch were consumed."""
        return int(self.state_dict()["at"]["step"])

    def report(self) -> dict[str, Any]:
        """What each stage did and how long was waited, in nanoseconds."""
        return cast("dict[str, Any]", json.loads(self._core.report()))

    @property
    def classes(self) -> list[str]:
        """The names of the classes, where labels are names."""
        return self._core.classes()

    @property
    def samples(self) -> int:
        """How many samples the dataset has, after long clips were cut."""
        return self._core.samples()

    # What hosts look for on a loader.

    @property
    def dataset(self) -> _Dataset:
        """The dataset, as far as hosts ask for it: its length."""
        return _Dataset(self.samples)

    @property
    def sampler(self) -> Loader[Array]:
        """What decides on the order, and is told the epoch: the loader itself."""
        return self

    @property
    def batch_sampler(self) -> None:
        """There is none."""
        return None

    @property
    def batch_size(self) -> int | None:
        """Samples of a step, where that is a number."""
        sizes = [kwargs["size"] for name, _, kwargs in self.pipeline._calls if name == "batch"]
        return cast("int | None", sizes[-1] if sizes else 1)

    def settings(self) -> dict[str, Any]:
        """How it is set up: `settings` of a record."""
        now = self.report()
        return {
            "loader": "feedwater",
            "data": str(self.pipeline._path),
            "threads": now["threads"],
            "prefetch": now["prefetch"],
            "batch_size": self.batch_size,
            "cache": now.get("cache", {}).get("level"),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "state": self.state_dict(), "epoch": self._epoch, **self._arguments()}

    def _arguments(self) -> dict[str, Any]:
        return {"convert": self._convert}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        state, epoch = saved.pop("state"), saved.pop("epoch")
        self.__init__(**saved)  # type: ignore[misc]
        self.load_state_dict(state)
        if not self.steps_consumed:
            self._epoch = epoch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.pipeline!r}>"


class _Dataset:
    """A length, for hosts that ask how large a loader's dataset is."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples


class _Reading(Iterator[Batch[Array]]):
    """One epoch being read."""

    def __init__(self, loader: Loader[Array], epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch
        self.begun = False
        self.done = False
        # Ended in its midst, because another one was begun.
        self.left = False

    def __next__(self) -> Batch[Array]:
        self._may_go_on()
        taken = self._take()
        if taken is None:
            self._end()
        return self._hand_over(taken)

    def _may_go_on(self) -> None:
        if self.left:
            raise RuntimeError(
                "this iterator ended when another one over the same loader was begun\n"
                "hint: one at a time; for two at once, make two loaders"
            )
        if self.done:
            raise StopIteration

    def _take(self) -> Taken[Array] | None:
        """The next batch from the engine; none at the end of the epoch."""
        if not self.begun:
            # Not before: hosts make iterators that they do not read.
            self.begun = True
            self.loader._core.begin(self.epoch)
            self.loader._epoch = self.epoch + 1
        made = self.loader._core.next()
        if made is None:
            return None
        tensors: dict[str, Array] = {}
        about: dict[str, Any] = {}
        for name, tensor in made.tensors():
            if name == "labels":
                about["label_lengths"] = tensor.lengths
            elif name != "attention_mask":
                about.setdefault("lengths", tensor.lengths)
            # No model takes them by this name: they are beside the batch, not in it.
            (about if name == "document_ids" else tensors)[name] = self.loader._convert(tensor)
        about.update(keys=made.keys, valid=made.valid, epoch=made.epoch, step=made.step)
        if texts := dict(made.texts()):
            about["texts"] = texts
        return Batch(tensors, about), made.state(), made.input()

    def _hand_over(self, taken: Taken[Array]) -> Batch[Array]:
        """From here on, the batch counts as consumed."""
        batch, self.loader._state, self.loader._input = taken
        return batch

    def _end(self) -> NoReturn:
        self.done = True
        self.loader._state = self.loader._core.state()
        raise StopIteration

    @property
    def last_input(self) -> dict[str, Any] | None:
        """How the last batch was made: `input` of a step in docs/record.md."""
        return self.loader.last_input

    def close(self) -> None:
        """Ends it before its end."""
        if self.begun and not self.done:
            self.loader._core.stop()
        self.done = True

    def __del__(self) -> None:
        # An interpreter that shuts down, a fork: nobody is left to be told.
        with contextlib.suppress(Exception):
            self.close()
