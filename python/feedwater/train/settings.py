"""What was asked for? The flags of `feedwater train`, read by the command's own parser: there is one list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_PATHS = ("data_dir", "output_dir", "eval_data", "tokenizer", "cache_dir")


class Wrong(Exception):
    """Something that the user can put right, in one sentence with a hint."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}\nhint: {hint}" if hint else what)


class Settings:
    """The flags, by their names. `feedwater train RECIPE --help` says what each means."""

    recipe: str
    data_dir: Path
    output_dir: Path
    eval_data: Path | None
    model: str | None
    engine: str
    config: str | None
    batch_size: int | str
    gradient_accumulation_steps: int
    max_steps: int | None
    num_epochs: float
    learning_rate: float | None
    warmup_steps: int
    lr_scheduler_type: str
    weight_decay: float
    max_grad_norm: float
    eval_steps: int
    save_steps: int
    early_stopping_patience: int | None
    threads: int | None
    prefetch: int | None
    cpu_ceiling: float | None
    device: str | None
    data_device: str | None
    precision: str | None
    bf16: bool
    fp16: bool
    bad_ceiling: float | None
    seed: int
    resume: bool
    json: bool
    cache: str
    cache_dir: Path | None
    cache_dtype: str | None
    cache_key: str
    cache_size: int | None
    # What only PyTorch does.
    compile: bool
    gradient_checkpointing: str | None
    augment_on: str
    noise: float | None
    time_masks: int
    on_oom: str
    strategy: str
    report_to: list[str]
    data_gpu: int | None
    model_gpu: int | None
    enable_memory_isolation: bool
    data_gpu_memory: int | None
    model_gpu_memory: int | None
    enable_static_shapes: bool
    cache_dataset: bool
    # What only some recipes have.
    task: str | None
    channels: int
    hidden: int
    encoder_epochs: float
    classifier_epochs: float | None
    model_size: str
    tokenizer: Path | None
    max_seconds: int
    language: str | None
    use_chunking: bool
    length: int
    no_packing: bool

    def __init__(self, said: dict[str, Any]) -> None:
        unknown = said.keys() - Settings.__annotations__.keys()
        if unknown:
            raise Wrong(f"the command has flags that this package does not know: {', '.join(sorted(unknown))}")
        for name in _PATHS:
            if said.get(name) is not None:
                said[name] = Path(said[name])
        self.__dict__.update(said)

    def replaced(self, **changes: Any) -> Settings:
        """The same with some of them changed."""
        return Settings({**self.__dict__, **changes})

    def saved(self) -> dict[str, Any]:
        """What decides on what is learned, as it is kept with a checkpoint: another value is another run."""
        free = {"max_steps", "eval_steps", "save_steps", "early_stopping_patience", "threads", "prefetch", "resume", "json"}
        free |= {"engine", "config", "data_dir", "output_dir", "eval_data", "device", "data_device", "report_to", "compile"}
        free |= {"gradient_checkpointing", "on_oom", "strategy", "data_gpu", "model_gpu", "enable_memory_isolation"}
        free |= {"data_gpu_memory", "model_gpu_memory", "cache_dataset", "bf16", "fp16", "num_epochs", "classifier_epochs"}
        # One number with different spellings: `batch_size` × processes × `gradient_accumulation_steps` is what counts.
        free |= {"bad_ceiling", "cpu_ceiling", "cache", "cache_dir", "cache_key", "cache_size"}
        free |= {"batch_size", "gradient_accumulation_steps", "model", "tokenizer"}
        return {name: value for name, value in self.__dict__.items() if name not in free}
