"""Where do batches come from, and where does a run stand in them? The pipeline of a recipe as a loader, epoch after epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import torch

from feedwater.pipeline import Pipeline
from feedwater.torch import TorchLoader
from feedwater.train.group import Group
from feedwater.train.places import Places
from feedwater.train.recipe import Recipe, Tensors, rows_of
from feedwater.train.relay import Between, CudaBetween, Relay
from feedwater.train.settings import Settings, Wrong

# Batches by which the length of an epoch is estimated, where documents are packed.
_LOOKED_AT = 200


class Feed(Iterator[Tensors]):
    """Batches on the data's device, epoch after epoch, each to be `placed`; and the place to go on from."""

    def __init__(
        self, loader: TorchLoader, recipe: Recipe, places: Places, settings: Settings, group: Group, between: Between | None = None
    ) -> None:
        self.loader, self.recipe, self.settings, self.places, self.group = loader, recipe, settings, places, group
        self.epoch = loader.epoch
        self._between = between
        if between is None and not places.are_one and places.model.type == places.data.type == "cuda":
            self._between = CudaBetween(places)
        self._batches = self._flow()
        self._relay = None
        if self._between is not None:
            self._relay = Relay(self._batches, self._prepared, self._between, loader.state_dict, lambda: loader.last_input)
        self._worked = 0
        self._before: Tensors | None = None

    def _flow(self) -> Iterator[Tensors]:
        empty = 0
        while True:
            self.epoch = self.loader.epoch
            empty += 1
            for batch in self.loader:
                empty = 0
                # Where all were bad there is nothing; alone, one goes on to the next.
                if batch or self.group.several:
                    yield batch
            # The rest of the epoch in which a run goes on may be none.
            if empty > 1:
                raise Wrong("an epoch has no batch", "are all samples bad? quarantine.jsonl in --output-dir says why")

    def _prepared(self, batch: Tensors) -> Tensors:
        if not batch:
            # Others wait for this process' gradients: a row from before stands in, and counts nothing.
            if self._before is None:
                raise Wrong("all samples of the first batch are bad", "quarantine.jsonl in --output-dir says why")
            return self._before
        generator = None
        if self.settings.augment_on == "device":
            generator = torch.Generator(device=self.places.data)
            # Of the batch's place alone: the same after every resume.
            place = (self.settings.seed * 1_000_003 + int(batch["epoch"])) * 1_000_003 + int(batch["step"])
            # Each process has other samples in it.
            generator.manual_seed(place * 4_099 + self.group.rank)
        prepared = self.recipe.prepare(batch, learning=True, generator=generator)
        if self.group.several:
            # A copy: the batch's memory is filled again.
            self._before = rows_of(prepared, 0, 1).replaced(torch.clone)
            self._before.about["valid"] = [False]
        return prepared

    def __next__(self) -> Tensors:
        return next(self._relay if self._relay is not None else self._batches)

    def placed(self, batch: Tensors) -> Tensors:
        """A batch as the model gets it. Where there is one device, this is its work and no waiting."""
        return batch if self._relay is not None else self._prepared(batch).to(self.places.model)

    @property
    def last_input(self) -> dict[str, Any] | None:
        """How the batch that was handed over last was made."""
        made: dict[str, Any] | None = self.loader.last_input if self._relay is None else self._relay.last_input
        return made

    @property
    def state(self) -> dict[str, Any]:
        """The place after the batch that was handed over last."""
        state: dict[str, Any] = self.loader.state_dict() if self._relay is None else self._relay.consumed
        return state

    def data_busy(self, wall_nanos: int) -> float | None:
        """The share of the time in which the data's device worked, where it is another."""
        if not isinstance(self._between, CudaBetween):
            return None
        self._worked += self._between.busy_nanos()
        return self._worked / max(wall_nanos, 1)

    def close(self) -> None:
        """Ends it."""
        self._batches.close()  # type: ignore[attr-defined]


def sized(pipeline: Pipeline, settings: Settings, batch_size: int) -> Pipeline:
    pipeline = pipeline.with_batch_size(batch_size).seed(settings.seed)
    if settings.prefetch:
        pipeline = pipeline.prefetch(settings.prefetch)
    if settings.threads:
        pipeline = pipeline.threads(settings.threads)
    if settings.cpu_ceiling:
        pipeline = pipeline.cpu_ceiling(settings.cpu_ceiling)
    if settings.cache != "off":
        pipeline = pipeline.cache(
            settings.cache,
            folder=settings.cache_dir,
            dtype=settings.cache_dtype,
            key=settings.cache_key,
            most_bytes=settings.cache_size,
        )
    rank = os.environ.get("RANK", "0")
    name = "quarantine.jsonl" if rank == "0" else f"quarantine.rank{rank}.jsonl"
    return pipeline.policy("skip", ceiling=settings.bad_ceiling, quarantine=settings.output_dir / name)


def loader_of(pipeline: Pipeline, settings: Settings, batch_size: int, group: Group | None, places: Places) -> TorchLoader:
    """Batches to learn from in a group, or to try the model on without one."""
    pipeline = sized(pipeline, settings, batch_size)
    if group is None:
        return pipeline.shuffle(False).ranks(0, 1).torch(device=str(places.data))
    pipeline = pipeline.ranks(group.rank, group.world)
    # Every process has a batch in every step, and one process has the steps of several. What an epoch leaves over comes in
    # another: in which, the order decides.
    if group.several or len(pipeline) >= batch_size:
        pipeline = pipeline.drop_last()
    return pipeline.torch(device=str(places.data))


def steps_of(settings: Settings, loader: TorchLoader, batch_size: int, accumulation: int, group: Group) -> int:
    """How many steps the epochs that were asked for have."""
    try:
        batches = float(len(loader))
    except TypeError:
        # Packed: by how many documents went into the first batches.
        looked = sized(loader.pipeline, settings, batch_size).ranks(0, 1).shuffle(True).numpy()
        documents: set[str] = set()
        seen = 0
        for seen, batch in enumerate(looked, start=1):
            documents.update(batch["keys"])
            if seen >= _LOOKED_AT:
                break
        batches = seen * loader.samples / max(len(documents), 1) / group.world
    if batches < 1:
        raise Wrong(
            f"there are {loader.samples} samples, and a step of all processes takes {batch_size * group.world}",
            "a smaller --batch-size",
        )
    return max(math.ceil(batches * settings.num_epochs / accumulation), 1)
