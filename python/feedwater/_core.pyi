"""
The engine. Private: use `feedwater`.
"""

from _typeshed import SupportsGetItem
from os import PathLike
from pathlib import Path
from typing_extensions import CapsuleType
from typing import Any, Final, SupportsFloat, SupportsIndex, final

__all__ = ["__version__", "Batch", "Builder", "Checkpoints", "Pipeline", "Tensor", "byte_tokens", "diagnose", "error_rates", "host", "html", "letters", "main", "settle", "train_options", "verdict"]

__version__: Final[str]
"""
The version of the engine.
"""

@final
class Batch:
    """
    A batch.
    """
    @property
    def epoch(self, /) -> int: ...
    def input(self, /) -> str:
        """
        How it was made, as JSON: `input` of a record's step.
        """
    @property
    def keys(self, /) -> list[str]: ...
    def state(self, /) -> str:
        """
        The place right after this batch, as JSON.
        """
    @property
    def step(self, /) -> int: ...
    def tensors(self, /) -> list[tuple[str, Tensor]]:
        """
        The tensors, by the name of the model's argument.
        """
    def texts(self, /) -> list[tuple[str, list[str]]]:
        """
        Text that was not tokenized, a string a row.
        """
    @property
    def valid(self, /) -> list[bool]: ...
    @property
    def wait_nanos(self, /) -> int: ...

@final
class Builder:
    """
    A pipeline that is being put together.
    """
    def __new__(cls, /, path: str | PathLike[str]) -> Builder: ...
    def batch(self, /, *, size: SupportsIndex | None = None, frames: SupportsIndex | None = None, tokens: SupportsIndex | None = None, packed: tuple[SupportsIndex, SupportsIndex] | None = None, buckets: SupportsIndex | None = None, pad: Any | None = None, pad_fields: SupportsGetItem[int, tuple[str, Any]] | None = None, dtype: str = "float32", drop_last: bool = False, mask: bool = False) -> None: ...
    def budget_bytes(self, /, bytes: SupportsIndex) -> None: ...
    def buffers(self, /, allocate: Any) -> None:
        """
        Where the memory of batches comes from: a function from a number of bytes to a tensor of `torch`.
        """
    def build(self, /) -> Pipeline:
        """
        Checks everything and puts it together.
        """
    def cache(self, /, level: str, folder: str | PathLike[str] | None, dtype: str | None, key: str, most_bytes: SupportsIndex | None) -> None: ...
    def causal_labels(self, /) -> None:
        """
        `labels` that are the tokens themselves: what a causal language model learns.
        """
    def chunk(self, /, seconds: SupportsFloat | SupportsIndex, overlap: SupportsFloat | SupportsIndex, without_times: str) -> None: ...
    def cpu_ceiling(self, /, share: SupportsFloat | SupportsIndex) -> None: ...
    def decode_audio(self, /, rate: SupportsIndex | None) -> None: ...
    def decode_npy(self, /) -> None: ...
    def gain(self, /, least: SupportsFloat | SupportsIndex, most: SupportsFloat | SupportsIndex) -> None: ...
    def log_mel(self, /, bins: SupportsIndex, pad_seconds: SupportsFloat | SupportsIndex | None) -> None: ...
    def longest(self, /, seconds: SupportsFloat | SupportsIndex) -> None: ...
    def map(self, /, name: str, run: Any) -> None:
        """
        A function of fields; see `feedwater.pipeline`.
        """
    def noise(self, /, snr_db: tuple[SupportsFloat | SupportsIndex, SupportsFloat | SupportsIndex] | None, deviation: SupportsFloat | SupportsIndex | None) -> None: ...
    @staticmethod
    def part(path: str | PathLike[str], every: SupportsIndex, held_out: bool) -> Builder:
        """
        The part of a dataset that is learned from, or the part that is held out.
        """
    def policy(self, /, bad: str, ceiling: SupportsFloat | SupportsIndex | None, quarantine: str | PathLike[str] | None) -> None: ...
    def prefetch(self, /, batches: SupportsIndex | None) -> None: ...
    def ranks(self, /, rank: SupportsIndex, world: SupportsIndex) -> None: ...
    def seed(self, /, seed: SupportsIndex) -> None: ...
    def share_cores(self, /, processes: SupportsIndex) -> None: ...
    def shuffle(self, /, shuffle: bool) -> None: ...
    def spec_augment(self, /, time: tuple[SupportsIndex, SupportsFloat | SupportsIndex], frequency: tuple[SupportsIndex, SupportsIndex]) -> None: ...
    def stuck_after(self, /, seconds: SupportsFloat | SupportsIndex) -> None: ...
    def threads(self, /, threads: SupportsIndex | None) -> None: ...
    def time_shift(self, /, seconds: SupportsFloat | SupportsIndex) -> None: ...
    def tokenize(self, /, tokenizer: str | PathLike[str], prefix: SupportsGetItem[int, str] | None, suffix: SupportsGetItem[int, str] | None, max_tokens: SupportsIndex | None, into_field: str | None) -> None: ...

@final
class Checkpoints:
    """
    The checkpoints of a run.
    """
    def __new__(cls, /, folder: str | PathLike[str]) -> Checkpoints: ...
    def abandon(self, /, step: SupportsIndex) -> None:
        """
        Takes away what was begun.
        """
    def begin(self, /, step: SupportsIndex) -> Path:
        """
        An empty folder to write the files of a checkpoint into.
        """
    def best(self, /) -> Path | None:
        """
        Where the best weights are, or the newest.
        """
    def finish(self, /, step: SupportsIndex, best: SupportsIndex | None) -> Path:
        """
        Makes a checkpoint of what was begun; those that are not needed any more go.
        """
    def is_empty(self, /) -> bool:
        """
        Whether there is none.
        """
    def newest(self, /) -> tuple[Path | None, list[str]]:
        """
        Where the newest that is whole is, and what is wrong with newer ones.
        """
    def path(self, /, step: SupportsIndex) -> Path:
        """
        Where that of a step is.
        """

@final
class Pipeline:
    """
    A pipeline that runs. Threads start with the first batch and end with `stop`.
    """
    def begin(self, /, epoch: SupportsIndex) -> None:
        """
        Begins an epoch, or goes on with it where a state was restored.
        """
    def classes(self, /) -> list[str]:
        """
        The names of the classes, where labels are names.
        """
    def is_ready(self, /) -> bool:
        """
        Whether the next batch is there, so that asking for it does not wait.
        """
    def next(self, /) -> Batch | None:
        """
        The next batch; none at the end of the epoch.
        """
    def report(self, /) -> str:
        """
        What was done so far and where the time went, as JSON.
        """
    def restore(self, /, state: str) -> None:
        """
        Goes on from a state.
        """
    def samples(self, /) -> int:
        """
        Samples of the dataset.
        """
    def state(self, /) -> str:
        """
        What was consumed so far, as JSON.
        """
    def steps(self, /) -> int | None:
        """
        Steps of an epoch; none where that is not known before it is over.
        """
    def stop(self, /) -> None:
        """
        Ends all threads. What was consumed is remembered.
        """

@final
class Tensor:
    """
    One tensor of a batch. It keeps its memory from being filled again for as long as it, or an array made of it, is there.
    """
    @property
    def __array_interface__(self, /) -> dict[str, Any]:
        """
        What numpy asks for.
        """
    def __dlpack__(self, /, *, stream: Any | None = None, max_version: tuple[SupportsIndex, SupportsIndex] | None = None, dl_device: tuple[SupportsIndex, SupportsIndex] | None = None, copy: bool | None = None) -> CapsuleType:
        """
        The tensor as DLPack hands it over: without a copy.
        """
    def __dlpack_device__(self, /) -> tuple[int, int]:
        """
        CPU, number 0.
        """
    def __repr__(self, /) -> str: ...
    @property
    def data_ptr(self, /) -> int:
        """
        Where it begins.
        """
    @property
    def dtype(self, /) -> str:
        """
        The type of its numbers: `float32`, `float16`, `bfloat16` or `int64`.
        """
    @property
    def lengths(self, /) -> list[int]:
        """
        How long each row was before it was padded.
        """
    @property
    def shape(self, /) -> list[int]:
        """
        Its shape; the first axis is the rows.
        """

def byte_tokens(tokens: SupportsGetItem[int, str]) -> str:
    """
    A `tokenizer.json` with a token for each byte, and those of a model behind them.
    """

def diagnose(record: str | PathLike[str]) -> str:
    """
    What a record says, as JSON.
    """

def error_rates(pairs: SupportsGetItem[int, tuple[str, str]]) -> tuple[float, float]:
    """
    Character and word error rates of transcripts: pairs of what is right and what was heard.
    """

def host() -> str:
    """
    This machine, as a record describes it, as JSON.
    """

def html(record: str | PathLike[str]) -> str:
    """
    What a record says, as a page for a browser.
    """

def letters(data: str | PathLike[str], tokens: SupportsGetItem[int, str]) -> str:
    """
    A `tokenizer.json` of the letters of all texts of a dataset, behind some tokens of a model; without any, behind
    the blank of CTC.
    """

def main(arguments: SupportsGetItem[int, str]) -> int:
    """
    Runs the `feedwater` command; the first argument is the program's name.
    """

def settle(seconds: SupportsFloat | SupportsIndex) -> None:
    """
    Waits until no worker is in a function of Python's, but not longer than so many seconds.
    """

def train_options(arguments: SupportsGetItem[int, str]) -> str:
    """
    What the arguments of `feedwater train` say, as JSON. Ends Python where they are wrong, or only ask for help.
    """

def verdict(record: str | PathLike[str]) -> str:
    """
    What a record says, in words for a terminal of 80 columns.
    """
