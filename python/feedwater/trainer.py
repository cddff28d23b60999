"""How does Hugging Face's `Trainer` train on a pipeline? With a mixin in front of it.

    class SpeechTrainer(TrainerMixin, Seq2SeqTrainer): ...

    SpeechTrainer(model=model, args=args, train_dataset=fw.whisper("data", "model"), …).train()

`Trainer` resumes by building a torch loader from `.dataset` and skipping the batches that were trained on. Here the place is
saved with each checkpoint as `feedwater_state.json`, and a resumed run goes on from it: nothing is loaded twice, and the
counting of steps, epochs and accumulation stays `Trainer`'s own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import trainer as _trainer
from transformers.trainer_utils import get_last_checkpoint

from feedwater.pipeline import Loader, Pipeline
from feedwater.torch import TorchLoader

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object

STATE = "feedwater_state.json"
_SKIP = "skip_first_batches"


class TrainerMixin(_Base):
    """In front of `Trainer` or a class made of it: `train_dataset` and `eval_dataset` may be pipelines.

    Batch sizes and the seed are those of the arguments (`per_device_train_batch_size`, `per_device_eval_batch_size`,
    `data_seed` or `seed`), whatever the pipeline says: the host counts by them. `dataloader_num_workers` (as threads; 0: as
    many as there are cores), `dataloader_prefetch_factor` and `dataloader_drop_last` are honoured where the pipeline itself
    does not say otherwise.
    """

    _feedwater_loader: TorchLoader | None = None
    _feedwater_resumed: int | None = None

    def get_train_dataloader(self) -> Any:
        """The loader of the training pipeline; `Trainer`'s own where the dataset is not one of ours."""
        dataset: object = self.train_dataset
        if not isinstance(dataset, Pipeline):
            return super().get_train_dataloader()
        args = self.args
        pipeline = dataset.with_batch_size(self._train_batch_size)
        pipeline = pipeline.seed(args.data_seed if args.data_seed is not None else args.seed)
        self._feedwater_loader = self._make(pipeline, drop_last=args.dataloader_drop_last)
        return self._feedwater_loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader of an evaluation pipeline, in the order of its files."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str) and isinstance(self.eval_dataset, dict):
            dataset = self.eval_dataset[dataset]
        if not isinstance(dataset, Pipeline):
            return super().get_eval_dataloader(eval_dataset)
        pipeline = dataset.with_batch_size(self.args.eval_batch_size).shuffle(False)
        return self._make(pipeline, drop_last=False)

    def _make(self, pipeline: Pipeline, *, drop_last: bool) -> TorchLoader:
        args = self.args
        if args.dataloader_num_workers > 0 and not pipeline.says("threads"):
            pipeline = pipeline.threads(args.dataloader_num_workers)
        if args.dataloader_prefetch_factor and not pipeline.says("prefetch"):
            pipeline = pipeline.prefetch(args.dataloader_prefetch_factor * max(args.dataloader_num_workers, 1))
        if drop_last:
            pipeline = pipeline.drop_last()
        if not pipeline.says("ranks"):
            pipeline = pipeline.ranks(args.process_index, args.world_size)
        return pipeline.torch(device=args.device)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains; a run that is resumed goes on from the saved place."""
        # By name: it is not among what the module says it exports.
        skip = getattr(_trainer, _SKIP)
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = get_last_checkpoint(str(self.args.output_dir))  # type: ignore[no-untyped-call]

        def skipped(loader: Any, batches: int = 0) -> Any:
            return _resumed(loader, batches, checkpoint) if isinstance(loader, Loader) else skip(loader, batches)

        setattr(_trainer, _SKIP, skipped)
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            setattr(_trainer, _SKIP, skip)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        if self._feedwater_loader is not None and self.args.should_save:
            folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
            # Written beside and renamed: a kill leaves the whole of it, or nothing.
            unfinished = folder / f"{STATE}.unfinished"
            unfinished.write_text(json.dumps(self._feedwater_loader.state_dict()), encoding="utf-8")
            unfinished.replace(folder / STATE)


def _resumed(loader: Loader[Any], batches: int, checkpoint: str | None) -> Loader[Any]:
    saved = Path(str(checkpoint)) / STATE
    if not saved.is_file():
        raise ValueError(
            f"`{checkpoint}` has no {STATE}: it was not saved by a trainer with this mixin\n"
            "hint: `ignore_data_skip=True` goes on with the model, and begins the epoch anew"
        )
    state = json.loads(saved.read_text(encoding="utf-8"))
    loader.load_state_dict(state)
    if loader.steps_consumed != batches:
        raise ValueError(
            f"`{saved}` is after {loader.steps_consumed} batches of its epoch, and the trainer after {batches}\n"
            "hint: was the batch size, the number of ranks or the accumulation changed?"
        )
    return loader
