"""What is known of a step while it goes on, and whose steps are they?"""

from __future__ import annotations

from collections import deque
from typing import Any

from .batches import Crew
from .record import Mark, Span

KEPT_BATCHES = 10
MOST_SPANS = 256


class Step:
    """One step, as marks."""

    def __init__(self, asked: Mark, epoch: int) -> None:
        self.asked = asked
        self.ended: Mark | None = None
        self.epoch = epoch
        self.spans: list[Span] = []
        self.forwards: list[Span] = []
        self.mark: str | None = None
        self.checkpoints: list[tuple[Mark, Mark]] = []
        self.extended: Mark | None = None
        self.got = False
        self.number = 0
        self.rows = 0
        self.input: dict[str, Any] | None = None
        # What a probe found out about the batch.
        self.made: dict[str, Any] | None = None
        # What was seen of the script's own loop.
        self.seen: list[list[Any]] | None = None
        self.others: dict[int, int] = {}

    def add(self, span: Span) -> None:
        """Adds a span, unless there are too many to be worth it."""
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)

    def backward(self, begin: Mark, end: Mark) -> None:
        """What was computed until here is one span."""
        if self.forwards:
            begin = self.forwards[0][1]
            self.forwards.clear()
        self.add(("compute", begin, end))

    def marks(self) -> list[Mark]:
        """All marks but the first and the last."""
        marks = [mark for _, begin, end in self.spans + self.forwards for mark in (begin, end)]
        return marks + [mark for pair in self.checkpoints for mark in pair]


class Lane:
    """The steps that one loader would have, or the script's own loop."""

    def __init__(self, order: int, settings: dict[str, Any]) -> None:
        self.order = order
        self.settings = settings
        self.epoch = -1
        self.served = 0
        self.watch: Watch | None = None
        # Iterators there are, and whether their loader is gone.
        self.live = 0
        self.orphan = False
        # How often an optimizer stepped after this loader was asked.
        self.votes = 0
        self.kept: deque[tuple[Any, Step]] = deque(maxlen=KEPT_BATCHES)
        self.step: Step | None = None
        self.asked: Mark | None = None
        # The step before, until it is known whether another follows or the epoch has ended.
        self.tail: Step | None = None
        self.pending: list[Step] = []


class Watch:
    """An iterator that is observed."""

    def __init__(self, lane: Lane, crew: Crew | None) -> None:
        self.lane = lane
        self.crew = crew
        self.began: Span | None = None
        self.worker: int | None = None
        self.ready: int | None = None
