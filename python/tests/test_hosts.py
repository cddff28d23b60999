"""Each host, for real, with a stop in the middle: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import feedwater as fw
import pytest
import torch

EPOCHS = 2


def expected(pipeline: fw.Pipeline, epochs: int = EPOCHS) -> list[list[str]]:
    """What is seen, step by step, when nothing stops it."""
    loader = pipeline.numpy()
    return [batch["keys"] for _ in range(epochs) for batch in loader]


class Stopped(Exception):
    """What a run is stopped with."""


class Model(torch.nn.Module):
    """A class for each sequence, from the mean of its frames."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 2)

    def forward(
        self, input_features: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, **_: Any
    ) -> dict[str, torch.Tensor]:
        mask = attention_mask[..., None].float()
        logits = self.linear((input_features * mask).sum(1) / mask.sum(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_trainer_resumes_in_the_midst_of_an_epoch(arrays: Path, tmp_path: Path) -> None:
    from feedwater.trainer import TrainerMixin
    from transformers import Trainer, TrainingArguments

    seen: list[list[str]] = []
    stop_at: int | None = None

    class Watched(TrainerMixin, Trainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if len(seen) == stop_at:
                raise Stopped
            seen.append(inputs["keys"])
            return super().training_step(model, inputs, *args, **kwargs)

    def trainer(folder: str) -> Watched:
        args = TrainingArguments(
            output_dir=str(tmp_path / folder), per_device_train_batch_size=4, num_train_epochs=EPOCHS,
            gradient_accumulation_steps=3, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
            dataloader_num_workers=2, seed=5, logging_steps=1,
        )  # fmt: skip
        torch.manual_seed(0)
        return Watched(model=Model(), args=args, train_dataset=fw.npy(arrays, noise=0.1), eval_dataset=fw.npy(arrays))

    # The seed is the arguments'.
    pipeline = fw.npy(arrays, batch_size=4, noise=0.1, seed=5)
    # 8 batches an epoch, 3 of them a step, the last two a step of their own.
    whole = trainer("whole")
    whole.train()
    assert seen == expected(pipeline)
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]

    # Stopped in the second epoch, after the checkpoint of step 4 and three batches more.
    seen.clear()
    stop_at = 14
    with pytest.raises(Stopped):
        trainer("stopped").train()
    stop_at = None
    del seen[11:]
    stopped = trainer("stopped")
    stopped.train(resume_from_checkpoint=True)
    assert seen == expected(pipeline)
    again = [entry["loss"] for entry in stopped.state.log_history if "loss" in entry]
    assert again[-2:] == pytest.approx(losses[-2:], rel=1e-4)
    assert set(stopped.evaluate()) >= {"eval_loss"}

    (tmp_path / "stopped" / "checkpoint-4" / "feedwater_state.json").unlink()
    with pytest.raises(ValueError, match="was not saved by a trainer with this mixin"):
        trainer("stopped").train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-4"))


def test_trainer_has_its_own_way_with_other_datasets(tmp_path: Path) -> None:
    from feedwater.trainer import TrainerMixin
    from transformers import Trainer, TrainingArguments

    class Mixed(TrainerMixin, Trainer):
        pass

    rows = [{"input_features": torch.ones(3, 16), "attention_mask": torch.ones(3), "labels": torch.tensor(1)}] * 8
    args = TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=1, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    trained = Mixed(model=Model(), args=args, train_dataset=rows).train()  # type: ignore[arg-type]
    assert trained.global_step == 1


def test_accelerate_resumes_in_the_midst_of_an_epoch(arrays: Path, tmp_path: Path) -> None:
    from accelerate import Accelerator

    pipeline = fw.npy(arrays, batch_size=4)
    seen: list[list[str]] = []

    def train(stop_after: int | None) -> None:
        accelerator = Accelerator(cpu=True)
        model = Model()
        made = pipeline.torch(device=accelerator.device)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters()), made)
        # Accelerate rebuilds loaders of torch, and leaves others as they are.
        assert loader is made
        accelerator.register_for_checkpointing(loader)
        if (tmp_path / "checkpoint").is_dir():
            accelerator.load_state(str(tmp_path / "checkpoint"))
        while loader.epoch < EPOCHS:
            for batch in loader:
                seen.append(batch["keys"])
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                if len(seen) == stop_after:
                    accelerator.save_state(str(tmp_path / "checkpoint"))
                    return

    train(stop_after=11)
    train(stop_after=None)
    assert seen == expected(pipeline)


def test_lightning_resumes_in_the_midst_of_an_epoch(arrays: Path, tmp_path: Path) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    seen: list[list[str]] = []
    stop_at: int | None = None

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            if len(seen) == stop_at:
                raise Stopped
            seen.append(batch["keys"])
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    pipeline = fw.npy(arrays, batch_size=4)

    def fit(checkpoint: Path | None) -> None:
        saves = ModelCheckpoint(dirpath=tmp_path, filename="saved", every_n_train_steps=7)
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, default_root_dir=tmp_path, callbacks=[saves],
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), pipeline.torch(), ckpt_path=str(checkpoint) if checkpoint else None)

    # Saved after seven of the eight steps of the first epoch, and stopped two steps later.
    stop_at = 9
    with pytest.raises(Stopped):
        fit(None)
    stop_at = None
    del seen[7:]
    fit(tmp_path / "saved.ckpt")
    assert seen == expected(pipeline)


TORCHRUN = """
import json, os, sys
import feedwater as fw
import torch, torch.distributed as dist
sys.path.insert(0, {tests!r})
from test_hosts import Model

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters())
loader = fw.npy({arrays!r}, batch_size=2).torch()
stop_after, place = int(sys.argv[1]), {place!r}
if os.path.exists(place):
    loader.load_state_dict(json.load(open(place)))
seen = open({seen!r} + f".{{rank}}", "a")
steps = 0
while loader.epoch < 2:
    for batch in loader:
        print(json.dumps(batch["keys"]), file=seen)
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps == stop_after:
            if rank == 0:
                json.dump(loader.state_dict(), open(place, "w"))
            seen.close()
            dist.barrier()
            dist.destroy_process_group()
            sys.exit(0)
seen.close()
dist.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="gloo over loopback, as torchrun sets it up on Linux")
def test_torchrun_with_two_processes_resumes(arrays: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    tests = str(Path(__file__).parent)
    place, seen = tmp_path / "state.json", tmp_path / "seen"
    script.write_text(TORCHRUN.format(tests=tests, arrays=str(arrays), place=str(place), seen=str(seen)))

    def torchrun(stop_after: int) -> None:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*line, str(script), str(stop_after)], capture_output=True, text=True, timeout=240, env=environment
        )
        assert done.returncode == 0, done.stderr

    torchrun(5)
    torchrun(-1)
    ranks = [[json.loads(line) for line in Path(f"{seen}.{rank}").read_text().splitlines()] for rank in range(2)]
    # Both together are the order of one process with the same global batch.
    steps = [sorted(one + two) for one, two in zip(*ranks, strict=True)]
    assert steps == [sorted(keys) for keys in expected(fw.npy(arrays, batch_size=4))]
