"""What did each step of the training loop take?

A step lasts from asking the loader for a batch to asking for the next. The loader that counts is the one within whose
iteration an optimizer steps; other loaders that are run through within a step are an evaluation. A script without any
optimizer (a benchmark that sleeps where the accelerator would work) has the loader that it asks the most.

A script without a loader has a loop of its own. Its step ends where the optimizer's step does, and what the loop does
outside the model is the wait: the accelerator stands still meanwhile.

What is known of a step:
    wait       in the loader
    copy       to the device
    compute    from the first forward to the end of backward, which has the loss in it, without copies; a forward that no
               backward follows counts by itself; and `time.sleep` that the script itself calls, a pretended accelerator
    optimizer  its step, without what a closure computes in it
The rest stays unknown, unless nothing of a model was ever seen: it is none of torch then, and what the loop does with a
batch is its work.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from .batches import Crew, Probe, Work, phases, size_of
from .record import Clock, Mark, Writer, host, share_out, spent_nanos
from .steps import KEPT_BATCHES, MOST_SPANS, Lane, Step, Watch

# Without an optimizer, so many batches make a loader the one that counts.
_LEAST_STEPS = 20
# With one, so many of its steps do.
_VOTES = 3
_MOST_PENDING = 100_000
# Device times of a step are waited for that many steps.
_MOST_BEHIND = 64
# So many are kept back until enough was seen to say what their time went into, but not for longer than this.
_MOST_UNSURE = 30
_MOST_UNSURE_NANOS = 5_000_000_000
_MOST_CALLS = 20
# Observing is to take no more than this of the time. Where steps are too short for that, some are observed, then there is
# a rest; but never fewer than it takes for a verdict.
_MOST_OVERHEAD = 0.005
_LEAST_OBSERVED = 64
_BURST = 32


def _asked(lane: Lane) -> int:
    return lane.asked[0] if lane.asked else 0


class Run:
    """The training run of this process."""

    def __init__(self, path: str, max_steps: int, replay: int, failed: Callable[[], None], name: str | None = None) -> None:
        self.path = path
        self.name = name
        self.thread = threading.get_ident()
        self.pid = os.getpid()
        self.on = True
        self.clock = Clock()
        self.probe = Probe(self.thread)
        self.optimizers = 0
        self.overhead_nanos = 0
        self.devices: Callable[[], list[dict[str, Any]]] = list
        self._work = Work()
        self._writer = Writer(path, failed)
        self._lanes: dict[int, Lane] = {}
        self._loaders = 0
        self._past: list[Lane] = []
        self._loop = Lane(-1, {"loader": "script", "threads": 0})
        self._main: Lane | None = None
        self._crews: list[Crew] = []
        self._epoch = 0
        self._queue: deque[Step] = deque()
        self._written = 0
        # What a step's number begins with, where the loader that counts is not the first, and the last one written.
        self._number = 0
        self._latest = -1
        self._first: Mark | None = None
        self._last: Mark | None = None
        self._pretended = False
        # Whether anything of a model was ever seen. Not every model is one of torch.
        self._modelled = False
        self._max_steps = max_steps
        self._replay = replay
        self._replayed = 0
        self._stopped = False
        self._rest_until = 0
        self._burst = 0

    def here(self) -> bool:
        """Whether this is the thread and the process that trains."""
        return self.on and threading.get_ident() == self.thread and (self._rest_until == 0 or self.wake(False))

    def wake(self, now: bool) -> bool:
        """Ends a rest, if it is time or has to be now."""
        if not now and time.perf_counter_ns() < self._rest_until:
            return False
        self._rest_until = 0
        self._burst = 0
        self.probe.on = True
        return True

    def _spent(self) -> int:
        own = self.overhead_nanos + self.probe.spent_nanos + self.probe.sampler.spent_nanos
        return own + sum(crew.spent() for crew in self._crews)

    def _may_rest(self, lane: Lane, now: Mark) -> bool:
        """After some steps: rests until what they cost is little."""
        self._burst += 1
        if self._burst < _BURST or lane is not self._main or self._first is None or self._written < _LEAST_OBSERVED:
            return False
        self._burst = 0
        until = self._first[0] + round(self._spent() / _MOST_OVERHEAD)
        if until <= now[0]:
            return False
        self.rest(until)
        return True

    def rest(self, until: int) -> None:
        """Observes nothing until then."""
        self._drain(_MOST_BEHIND, 0)
        self._rest_until = until
        self.probe.on = False
        self.probe.last = None
        self._leave_loop()

    # Loaders

    def watch(self, loader: object, settings: dict[str, Any], crew: Crew | None, began: Mark) -> Watch:
        """An iterator was made, or begins anew. `loader` is whose it is."""
        lane = self._lanes.get(id(loader))
        if lane is None:
            lane = self._lanes[id(loader)] = Lane(self._loaders, settings)
            self._loaders += 1
            try:
                weakref.finalize(loader, self._retire, id(loader)).atexit = False
            except TypeError:
                pass
        if crew is not None and crew not in self._crews:
            self._crews.append(crew)
        if not settings.get("threads"):
            self.probe.sampler.start()
        lane.live += 1
        watch = Watch(lane, crew)
        watch.began = ("wait", began, self.clock.mark())
        return watch

    def ask(self, watch: Watch) -> None:
        """The script asks for a batch."""
        began = spent_nanos()
        now = self.clock.mark()
        lane = watch.lane
        self._leave_loop()
        for other in self._beside(lane):
            if other.step is not None:
                times = other.step.others[lane.order] = other.step.others.get(lane.order, 0) + 1
                # Asked twice within a step: it has a whole loop in it. Loaders that go side by side are asked once.
                if times >= 2:
                    other.step.mark = other.step.mark or "evaluation"
            elif other.tail is not None:
                other.tail.mark, other.tail.extended = other.tail.mark or "evaluation", now
        begin, made = now, watch.began
        if made is not None:
            # Making the iterator is part of the wait, unless the script did something else after it.
            if now[0] - made[2][0] < 10_000_000:
                begin = made[1]
            self._end_epoch(lane, begin)
            lane.epoch += 1
        if lane.step is not None:
            lane.step.ended = begin
            lane.tail = lane.step if lane.step.got else None
            lane.step = None
            if made is None and self._may_rest(lane, now):
                self._end_epoch(lane, None)
                self.overhead_nanos += spent_nanos() - began
                return
        lane.asked, lane.watch = now, watch
        lane.step = Step(begin, lane.epoch)
        if made is not None:
            watch.began = None
            if begin is not now:
                lane.step.add(made)
        self.overhead_nanos += spent_nanos() - began

    def got(self, watch: Watch, batch: Any, last_input: Any = None) -> None:
        """The loader gave a batch."""
        now = self.clock.mark()
        began = spent_nanos()
        lane = watch.lane
        step, asked = lane.step, lane.asked
        lane.served += 1
        if step is None or asked is None:
            return
        step.got, step.number = True, lane.served - 1
        step.add(("wait", asked, now))
        self._end_epoch(lane, None)
        for other in self._beside(lane):
            if other.step is not None and other.step.mark is None:
                other.step.add(("wait", asked, now))
        step.rows, size = size_of(batch)
        if isinstance(last_input, dict):
            step.input = last_input
        else:
            self._made(watch, step, size)
        if self._max_steps and self._main in (None, lane) and lane.served + KEPT_BATCHES > self._max_steps:
            lane.kept.append((batch, step))
        if self._main is None and not self.optimizers:
            enough = min(_LEAST_STEPS, self._max_steps or _LEAST_STEPS)
            if lane.served >= enough:
                # The outermost, where one lies within the other.
                self._choose(min(self._open(), key=lambda lane: lane.step.asked[0] if lane.step else 0))
        self.overhead_nanos += spent_nanos() - began

    def _made(self, watch: Watch, step: Step, size: int) -> None:
        if watch.crew is not None:
            raw = None if watch.worker is None else watch.crew.take(watch.worker)
        else:
            raw, self.probe.last = self.probe.last, None
        if raw is None or self._main not in (None, watch.lane):
            return
        self._work.learn(phases(raw), raw.get("seen", []))
        step.made = raw
        step.input = {"bytes": size}
        if watch.ready is not None:
            step.input["ready"] = watch.ready
        if raw["rows"] > 1 or not step.rows:
            step.rows = raw["rows"]

    def waiting(self) -> bool:
        """Whether a loader was asked and has not answered: what runs now is the loader's."""
        return any(lane.step is not None and not lane.step.got for lane in self._lanes.values())

    def exhausted(self, watch: Watch) -> None:
        """The loader had no more, or failed: the step that asking began is none."""
        watch.lane.step = None

    def gone(self, watch: Watch) -> None:
        """An iterator is no more, as after a `break`. The step goes on until the next is asked for."""
        lane = watch.lane
        lane.live -= 1
        if watch.crew is not None and watch.crew in self._crews:
            # A run of many epochs would run out of files otherwise.
            self._crews.remove(watch.crew)
            self.overhead_nanos += watch.crew.close()
        if lane.watch is watch and (lane is not self._main or lane.orphan):
            lane.step = None
        if lane.orphan and not lane.live:
            self._lanes.pop(-1 - lane.order, None)
            self._bury(lane)

    def replaying(self, watch: Watch) -> bool:
        """Whether enough was observed, so that batches come from memory now."""
        return bool(self._max_steps) and watch.lane is self._main and watch.lane.served >= self._max_steps

    def replay(self, watch: Watch) -> Any:
        """A batch that was served before; at last, the end of the run."""
        lane = watch.lane
        if not lane.kept or self._replayed >= self._replay:
            self.stop()
        batch, before = lane.kept[self._replayed % len(lane.kept)]
        self._replayed += 1
        step = lane.step
        if step is not None and lane.asked is not None:
            step.mark, step.got, step.number = "replay", True, lane.served
            lane.served += 1
            # What was found out with that batch is not found out again.
            step.input = before.input and {name: value for name, value in before.input.items() if name != "tuned"}
            step.made, step.rows = before.made, before.rows
            step.add(("wait", lane.asked, self.clock.mark()))
            self._end_epoch(lane, None)
        return batch

    def stop(self) -> None:
        """Ends the script as `sys.exit(0)` would."""
        self._stopped = True
        raise SystemExit(0)

    def _retire(self, loader: int) -> None:
        """A loader is no more; its steps may still turn out to be those that count."""
        lane = self._lanes.pop(loader, None)
        if lane is None:
            return
        lane.orphan = True
        if lane.live:
            # `for batch in DataLoader(…)`: only the iterator is left, and is what counts.
            self._lanes[-1 - lane.order] = lane
        else:
            self._bury(lane)

    def _bury(self, lane: Lane) -> None:
        if lane is not self._main and (lane.pending or lane.tail):
            self._past = sorted([lane, *self._past], key=lambda lane: -len(lane.pending))[:8]

    def _beside(self, lane: Lane) -> list[Lane]:
        if self._main is not None:
            return [] if self._main is lane else [self._main]
        return [other for other in self._lanes.values() if other is not lane]

    def _open(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.step is not None]

    def _end_epoch(self, lane: Lane, begin: Mark | None) -> None:
        """The step before this one is over. What came after an epoch's last belongs to it where that is known."""
        tail, lane.tail = lane.tail, None
        if tail is None:
            return
        if tail.extended is not None:
            tail.ended = begin or tail.extended
        self._commit(lane, tail)

    # The script's own loop

    def _leave_loop(self) -> None:
        if self._loop.step is not None:
            self._loop.step = None
            self.probe.sampler.phase = ""

    def _delimit(self) -> None:
        """A step of the script's own loop ends here, and the next begins."""
        if self._rest_until or self._open() or (self._main is not None and self._main is not self._loop):
            return
        began = spent_nanos()
        now = self.clock.mark()
        loop = self._loop
        sampler = self.probe.sampler
        step = loop.step
        seen = [[*what, count] for what, count in sampler.take().items()]
        if step is None:
            sampler.start()
        else:
            step.ended, step.got, step.seen, step.number = now, True, seen, loop.served
            loop.served += 1
            self._commit(loop, step)
            if self._main is None and len(loop.pending) >= min(_LEAST_STEPS, self._max_steps or _LEAST_STEPS):
                self._choose(loop)
            if self._may_rest(loop, now):
                return
        loop.step = Step(now, 0)
        sampler.enter("loop")
        self.overhead_nanos += spent_nanos() - began
        if self._main is loop and self._max_steps and loop.served >= self._max_steps:
            self.stop()

    def _inside(self, inside: bool) -> None:
        """Whether the loop is at what is none of the input's work."""
        if self._loop.step is not None:
            self.probe.sampler.enter("" if inside else "loop")

    # The model

    def _targets(self) -> list[Step]:
        if self._main is not None:
            return [self._main.step] if self._main.step is not None else []
        steps = [lane.step for lane in self._lanes.values() if lane.step is not None and lane.step.got]
        return steps or ([self._loop.step] if self._loop.step is not None else [])

    def forward_begins(self) -> Mark:
        """The outermost module is called."""
        self._modelled = True
        self._inside(True)
        return self.clock.mark()

    def forward_ends(self, begin: Mark, training: bool, first: bool) -> None:
        """The outermost module has returned. `first`: it was compiled in this call."""
        end = self.clock.mark()
        for step in self._targets():
            if len(step.forwards) < MOST_SPANS:
                if training:
                    step.forwards.append(("compute", begin, end))
                else:
                    step.add(("compute", begin, end))
            if first:
                step.mark = step.mark or "compile"
        if not training:
            self._inside(False)

    def backward(self, begin: Mark) -> None:
        """Backward has ended."""
        end = self.clock.mark()
        for step in self._targets():
            step.backward(begin, end)
        self._inside(False)

    def optimizer_begins(self) -> Mark:
        """An optimizer is about to step: that speaks for the loader that was asked last."""
        # It may have been made before anything was observed.
        self.optimizers = max(self.optimizers, 1)
        lanes = [lane for lane in self._open() if lane.step is not None and lane.step.got]
        if lanes:
            self._vote(max(lanes, key=_asked))
        self._inside(True)
        return self.clock.mark()

    def _vote(self, lane: Lane) -> None:
        lane.votes += 1
        main = self._main
        if main is None:
            # A loader may have been asked for a few batches before, to try it out.
            if lane.votes >= min(_VOTES, self._max_steps or _VOTES):
                self._choose(lane)
        elif lane is main:
            for other in self._lanes.values():
                other.votes = 0
        elif _asked(lane) > _asked(main) and (main.step is None or lane.votes >= 2 * _VOTES):
            self._choose(lane)

    def optimizer_ends(self, begin: Mark) -> None:
        """An optimizer has stepped."""
        self._modelled = True
        self.span("optimizer", begin)
        self._inside(False)
        self._delimit()

    def slept(self, begin: Mark) -> None:
        """The script itself has slept: that is a pretended accelerator."""
        self._pretended = self._modelled = True
        self.span("compute", begin)
        self._inside(False)
        if not self.optimizers:
            self._delimit()

    def sleep_begins(self) -> Mark:
        """The script itself is about to sleep."""
        self._inside(True)
        return self.clock.mark()

    def span(self, kind: str, begin: Mark) -> None:
        """Something has ended that began then."""
        end = self.clock.mark()
        for step in self._targets():
            step.add((kind, begin, end))

    def saved(self, begin: Mark) -> None:
        """A checkpoint was written."""
        end = self.clock.mark()
        for step in self._targets():
            step.checkpoints.append((begin, end))
        if self._main is not None and self._main.step is None and self._main.tail is not None:
            self._main.tail.mark, self._main.tail.extended = self._main.tail.mark or "checkpoint", end

    # Writing

    def _choose(self, lane: Lane) -> None:
        """This is the loader that counts."""
        if lane is self._main:
            return
        before, self._main = self._main, lane
        if before is None:
            self._head(lane)
        else:
            self._main = before
            self._end_epoch(before, None)
            self._drain(0)
            self._main = lane
            self._epoch += before.epoch + 1
            self._number = self._latest + 1
        pending, lane.pending = lane.pending, []
        for step in pending:
            self._commit(lane, step)

    def _commit(self, lane: Lane, step: Step) -> None:
        if lane is not self._main:
            if len(lane.pending) < _MOST_PENDING:
                lane.pending.append(step)
            return
        if step.seen is not None:
            self._work.learn({}, step.seen)
        self._queue.append(step)
        self._drain(_MOST_BEHIND)

    def _drain(self, most: int, unsure: int = _MOST_UNSURE) -> None:
        while self._queue:
            step = self._queue[0]
            if len(self._queue) <= min(most, unsure) and self._is_unsure(step):
                return
            marks = step.marks() + ([step.ended] if step.ended else [])
            passed = self.clock.passed([step.asked, *marks])
            if not passed and len(self._queue) <= most:
                return
            self._queue.popleft()
            self._write(step, passed)
            self.clock.release({id(mark): mark for mark in [step.asked, *marks[:-1]]}.values())

    def _is_unsure(self, step: Step) -> bool:
        """Whether more will soon be known of what its time went into: the first few looks may all have met the same place."""
        if step.made is None and step.seen is None or time.perf_counter_ns() - step.asked[0] > _MOST_UNSURE_NANOS:
            return False
        return not self._work.knows_enough("loop" if step.made is None else "getitem")

    def _write(self, step: Step, passed: bool) -> None:
        if step.ended is None:
            return
        spans = step.spans + step.forwards
        flat = [mark for _, begin, end in spans for mark in (begin, end)]
        saves = [mark for pair in step.checkpoints for mark in pair]
        offsets = self.clock.offsets(step.asked, [step.ended, *flat, *saves], passed)
        wall = offsets[0]
        if wall <= 0:
            return
        at = offsets[1 : 1 + len(flat)]
        parts = share_out(wall, [(span[0], at[2 * i], at[2 * i + 1]) for i, span in enumerate(spans)])
        after = offsets[1 + len(flat) :]
        if sum(end - begin for begin, end in zip(after[::2], after[1::2], strict=True)) * 20 >= wall and saves:
            step.mark = step.mark or "checkpoint"
        if step.seen is not None:
            parts["wait"] = wall - sum(parts.values())
            loop = {"loop": parts["wait"]}
            self._work.learn(loop, [])
            step.input = {"work_nanos": self._work.stages(loop, step.seen)}
        elif not self._modelled:
            parts["compute"] = wall - sum(parts.values())
        if step.made is not None:
            step.input = {**self._work.input(step.made), **(step.input or {})}
        line: dict[str, Any] = {"step": self._number + step.number, "wall_nanos": wall}
        if self._epoch + step.epoch > 0:
            line["epoch"] = self._epoch + step.epoch
        line.update({f"{kind}_nanos": nanos for kind, nanos in parts.items() if nanos or kind == "wait"})
        if step.rows:
            line["rows"] = step.rows
        if step.mark is not None:
            line["mark"] = step.mark
        if step.input is not None:
            line["input"] = step.input
        self._writer.line(line)
        self._written += 1
        self._latest = self._number + step.number
        self._first = self._first or step.asked
        self._last = step.ended

    def _head(self, lane: Lane) -> None:
        devices = self.devices()
        if self._pretended and not devices:
            devices = [{"index": 0, "name": "time.sleep", "simulated": True, "links": {}}]
        settings = {name: value for name, value in lane.settings.items() if value is not None}
        self._writer.line(
            {
                "record": "feedwater",
                "version": 1,
                "run": {
                    "name": self.name or os.path.basename(getattr(sys, "argv", None) and sys.argv[0] or ""),
                    "writer": "feedwater attach",
                    "started_unix_seconds": int(time.time()),
                    "clock": self.clock.name,
                    "host": host(),
                    "devices": devices,
                    "settings": settings,
                },
            }
        )

    def flush(self) -> None:
        """What is known by now goes into the file."""
        if threading.get_ident() == self.thread:
            self._drain(_MOST_BEHIND, 0)
        self._writer.flush()

    def finish(self) -> None:
        """The script is over."""
        if not self.on or os.getpid() != self.pid:
            return
        self.on = False
        self.probe.sampler.stop()
        if self._main is None:
            lanes = [lane for lane in (self._loop, *self._past, *self._lanes.values()) if lane.pending or lane.tail]
            if lanes:
                self._choose(max(lanes, key=lambda lane: (lane.votes, len(lane.pending))))
        if self._main is None:
            return
        self._end_epoch(self._main, None)
        self._drain(0)
        overhead = self._spent()
        for crew in self._crews:
            crew.close()
        if self._first is not None and self._last is not None:
            self._writer.line({"calls": self._work.calls(_MOST_CALLS)})
            end: dict[str, Any] = {"wall_nanos": self._last[0] - self._first[0], "overhead_nanos": overhead}
            if self._stopped:
                end["stopped"] = "max_steps"
            self._writer.line({"end": end})
        self._writer.close()
