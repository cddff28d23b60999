"""Where does the observer hook into torch?

A few functions of its modules are replaced once they are there. Each replacement calls the original and notes the time
around it. Whatever fails in here is written to a log, and the script goes on as if nothing had been observed. Where no run
is observed, the replacements only pass calls on.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, TracebackType
from typing import Any

from .batches import Crew, Probe, observe_worker, time_fetcher
from .run import Run
from .stacks import ask_soon, is_library
from .steps import Watch

OWNER = "FEEDWATER_ATTACH_OWNER"
FOLDER = "FEEDWATER_ATTACH_WORKERS"
LOG = "FEEDWATER_ATTACH_LOG"
_OWN = os.path.dirname(os.path.abspath(__file__))

_run: Run | None = None
_probe: Probe | None = None
_logged = 0


def begin(run: Run) -> None:
    """This run is observed from now on."""
    global _run, _probe
    _run, _probe = run, run.probe


def end() -> None:
    """Nothing is observed any more."""
    global _run, _probe
    _run = _probe = None
    ask_soon(False)


def observing() -> Run | None:
    """The run that is observed."""
    return _run


def log_failure() -> None:
    """Writes what failed to the log."""
    global _logged
    _logged += 1
    if _logged > 100:
        return
    try:
        with open(os.environ[LOG], "a", encoding="utf-8") as log:
            log.write(traceback.format_exc())
    except Exception:  # noqa: BLE001
        pass


def safe(note: Callable[..., Any], *values: Any) -> Any:
    """Calls what notes something. It may fail; then it is nothing."""
    try:
        return note(*values)
    except Exception:  # noqa: BLE001
        log_failure()
        return None


# Loaders


def _settings(loader: Any) -> dict[str, Any]:
    workers = int(loader.num_workers)
    sampler = getattr(loader, "batch_sampler", None)
    size = loader.batch_size if loader.batch_size is not None else getattr(sampler, "batch_size", None)
    return {
        "loader": "torch",
        "threads": workers,
        "batch_at_a_time": True,
        "prefetch": workers * int(loader.prefetch_factor or 0) if workers else None,
        "batch_size": size if isinstance(size, int) else None,
        "pinned": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers) if workers else None,
    }


def _patch_loader(module: ModuleType) -> None:
    loader_type: Any = module.DataLoader
    base: Any = module._BaseDataLoaderIter
    many: Any = module._MultiProcessingDataLoaderIter
    make, following = loader_type.__iter__, base.__next__

    @functools.wraps(make)
    def __iter__(self: Any) -> Any:  # noqa: N807
        run = _run
        if run is None or threading.get_ident() != run.thread:
            return make(self)
        began = run.clock.mark()
        safe(_prepare_folder)
        iterator = make(self)
        safe(_watch, run, self, iterator, began)
        return iterator

    @functools.wraps(following)
    def __next__(self: Any) -> Any:  # noqa: N807
        run = _run
        watch: Watch | None = self.__dict__.get("_feedwater_watch")
        if run is None or watch is None or threading.get_ident() != run.thread:
            return following(self)
        crew = watch.crew
        if crew is not None:
            safe(_next_worker, watch, self)
        here = run.here() or (run.replaying(watch) and run.wake(True))
        if here:
            safe(_ask, run, watch, self)
            if run.replaying(watch):
                try:
                    return run.replay(watch)
                except SystemExit:
                    safe(_shut_down, self)
                    raise
        try:
            batch = following(self)
        except BaseException:
            safe(run.exhausted, watch)
            raise
        if crew is not None and watch.worker is not None:
            crew.received[watch.worker] += 1
        if here:
            safe(run.got, watch, batch, getattr(self, "last_input", None))
        else:
            watch.lane.served += 1
        return batch

    loader_type.__iter__, base.__next__ = __iter__, __next__
    process = many._process_data

    @functools.wraps(process)
    def _process_data(self: Any, data: Any, *worker: Any) -> Any:
        watch: Watch | None = self.__dict__.get("_feedwater_watch")
        if watch is not None and worker:
            watch.worker = worker[0]
        return process(self, data, *worker)

    many._process_data = _process_data


def _prepare_folder() -> None:
    os.makedirs(os.environ[FOLDER], exist_ok=True)


def _watch(run: Run, loader: Any, iterator: Any, began: Any) -> None:
    crew: Crew | None = iterator.__dict__.get("_feedwater_crew")
    if crew is None and getattr(iterator, "_workers", None):
        crew = iterator._feedwater_crew = Crew(os.environ[FOLDER], iterator)
    watch = run.watch(loader, _settings(loader), crew, began)
    iterator._feedwater_watch = watch
    weakref.finalize(iterator, run.gone, watch).atexit = False


def _ask(run: Run, watch: Watch, iterator: Any) -> None:
    if run.clock.name == "host":
        _use_events(run)
    if watch.crew is not None:
        try:
            fetched = sum(len(task) == 2 for task in iterator._task_info.values())
            watch.ready = fetched + iterator._data_queue.qsize()
        except NotImplementedError:
            watch.ready = None
    run.ask(watch)


def _next_worker(watch: Watch, iterator: Any) -> None:
    """Whose batch comes next. Newer versions of torch say it when they hand the batch over; all go round in order."""
    following = iterator._task_info.get(iterator._rcvd_idx)
    watch.worker = following[0] if following else None


def _shut_down(iterator: Any) -> None:
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def observe_iterator(loader: object, settings: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
    """Observes an iterator of another loader, for one epoch.

    `settings` are those of the record. Where the iterator has a `last_input`, a dict as the record's `input`, it becomes that
    of the step. Outside of an observed run, the iterator is given back as it is.
    """
    run = _run
    if run is None or not run.here() or isinstance(iterator, _Observed) or hasattr(iterator, "_feedwater_watch"):
        return iterator
    return _Observed(run, loader, settings, iterator)


class _Observed:
    """An iterator of another loader. Whatever else it can do, it still can."""

    def __init__(self, run: Run, loader: object, settings: dict[str, Any], iterator: Iterator[Any]) -> None:
        self._run = run
        self._iterator = iterator
        self._watch: Watch | None = safe(run.watch, loader, settings, None, run.clock.mark())
        if self._watch is not None:
            weakref.finalize(self, run.gone, self._watch).atexit = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __iter__(self) -> _Observed:
        return self

    def __next__(self) -> Any:
        run, watch = self._run, self._watch
        if watch is None or not (run.here() or (run.replaying(watch) and run.wake(True))):
            if watch is not None:
                watch.lane.served += 1
            return next(self._iterator)
        safe(_ask, run, watch, self)
        if run.replaying(watch):
            return run.replay(watch)
        try:
            batch = next(self._iterator)
        except BaseException:
            safe(run.exhausted, watch)
            raise
        safe(run.got, watch, batch, getattr(self._iterator, "last_input", None))
        return batch


# Workers


def _patch_worker(module: ModuleType) -> None:
    original = module._worker_loop

    # Processes are started with this function by its name: it is found under the same name there, and is this one again.
    @functools.wraps(original)
    def _worker_loop(*values: Any, **named: Any) -> Any:
        safe(_begin_worker, module, values)
        return original(*values, **named)

    module._worker_loop = _worker_loop  # type: ignore[attr-defined]


def _begin_worker(module: ModuleType, values: Sequence[Any]) -> None:
    global _probe, _run
    import multiprocessing

    _run = None
    _probe = None
    parent = multiprocessing.parent_process()
    if parent is None or str(parent.pid) != os.environ.get(OWNER):
        return
    # As torch calls it: …, base_seed, init_fn, worker_id, num_workers, …
    seed, worker, workers = int(values[8]), int(values[10]), int(values[11])
    _probe = observe_worker(os.environ[FOLDER], worker, workers, seed)
    wrap: Any = module.ExceptionWrapper

    def without_us(*parts: Any, **named: Any) -> Any:
        _hide(sys.exc_info()[1])
        return wrap(*parts, **named)

    module.ExceptionWrapper = without_us  # type: ignore[attr-defined]


def _patch_fetch(module: ModuleType) -> None:
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        _patch_fetcher(getattr(module, name))


def _patch_fetcher(fetcher_type: Any) -> None:
    fetch = fetcher_type.fetch

    @functools.wraps(fetch)
    def observed(self: Any, possibly_batched_index: Any) -> Any:
        probe = _probe
        if probe is None or not probe.on or threading.get_ident() != probe.thread:
            return fetch(self, possibly_batched_index)
        if "_feedwater" not in self.__dict__:
            self._feedwater = True
            safe(time_fetcher, self, probe)
        return probe.fetch(fetch, self, possibly_batched_index)

    fetcher_type.fetch = observed


# The model


def _patch_torch(torch: Any) -> None:
    for patch in (_patch_module, _patch_backward, _patch_optimizer, _patch_save, _patch_sleep):
        safe(patch, torch)
    sys.excepthook = _hiding(sys.excepthook)


def _patch_module(torch: Any) -> None:
    module_type = torch.nn.Module
    call = module_type.__call__
    compiling = torch.compiler.is_dynamo_compiling
    inside = False
    compiled: set[int] = set()

    @functools.wraps(call)
    def __call__(self: Any, *values: Any, **named: Any) -> Any:  # noqa: N807
        nonlocal inside
        # The compiler reads this function: for it, there is nothing in here.
        if compiling() or inside:
            return call(self, *values, **named)
        run = _run
        if run is None or not run.here() or not safe(_is_model, run, self):
            return call(self, *values, **named)
        first = id(self) not in compiled and _is_compiled(self)
        if first:
            compiled.add(id(self))
        begin = run.forward_begins()
        inside = True
        try:
            return call(self, *values, **named)
        finally:
            inside = False
            safe(run.forward_ends, begin, self.training, first)

    module_type.__call__ = __call__


def _is_model(run: Run, module: Any) -> bool:
    """Whether a module is part of what is trained: not a transform within the loader, nor one without parameters."""
    return not run.waiting() and next(iter(module.parameters()), None) is not None


def _is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _noting(original: Callable[..., Any], note: Callable[[Run, Any], None]) -> Callable[..., Any]:
    """The same function, and whoever observes is told when it began."""

    @functools.wraps(original)
    def observed(*values: Any, **named: Any) -> Any:
        run = _run
        if run is None or not run.here():
            return original(*values, **named)
        begin = run.clock.mark()
        try:
            return original(*values, **named)
        finally:
            safe(note, run, begin)

    return observed


def _patch_backward(torch: Any) -> None:
    # `Tensor.backward` calls this one.
    torch.autograd.backward = _noting(torch.autograd.backward, Run.backward)


def _patch_optimizer(torch: Any) -> None:
    optimizer: Any = sys.modules["torch.optim.optimizer"]
    begun: list[Any] = []

    def before(*_: Any) -> None:
        run = _run
        if run is not None and run.here():
            begun.append(safe(run.optimizer_begins))

    def after(*_: Any) -> None:
        run = _run
        if run is not None and run.here() and begun:
            begin = begun.pop()
            # One that failed has no end.
            begun.clear()
            if begin is not None:
                safe(run.optimizer_ends, begin)

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)
    make = optimizer.Optimizer.__init__

    @functools.wraps(make)
    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807
        if _run is not None:
            _run.optimizers += 1
        make(self, *values, **named)

    optimizer.Optimizer.__init__ = __init__


def _patch_save(torch: Any) -> None:
    torch.save = torch.serialization.save = _noting(torch.save, Run.saved)


def _patch_safetensors(module: ModuleType) -> None:
    # `save_pretrained` ends up here.
    for name in ("save_file", "save_model"):
        if hasattr(module, name):
            setattr(module, name, _noting(getattr(module, name), Run.saved))


def _patch_sleep(_: Any) -> None:
    sleep = time.sleep

    @functools.wraps(sleep)
    def observed(seconds: float, /) -> None:
        run = _run
        if (
            run is None
            or not run.here()
            or run.waiting()
            or is_library(sys._getframe(1).f_code.co_filename)
        ):
            return sleep(seconds)
        begin = run.sleep_begins()
        try:
            return sleep(seconds)
        finally:
            safe(run.slept, begin)

    time.sleep = observed  # type: ignore[assignment]


def _use_events(run: Run) -> None:
    """Once CUDA is in use, time is told by its events, and copies are looked at."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    run.clock.use_events(torch.cuda.Event, torch.cuda.is_current_stream_capturing)
    run.devices = functools.partial(_devices, torch)
    patch_copies(torch)


def _devices(torch: Any) -> list[dict[str, Any]]:
    index = torch.cuda.current_device()
    about = torch.cuda.get_device_properties(index)
    return [{"index": index, "name": about.name, "memory_bytes": about.total_memory, "links": {}}]


def patch_copies(torch: Any) -> None:
    """Looks at copies from the host to a device."""
    compiling = torch.compiler.is_dynamo_compiling

    def observe(name: str, is_copy: Callable[[Any, Sequence[Any]], bool]) -> None:
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def observed(self: Any, *values: Any, **named: Any) -> Any:
            if compiling():
                return original(self, *values, **named)
            run = _run
            if run is None or not run.here() or not is_copy(self, values):
                return original(self, *values, **named)
            begin = run.clock.mark()
            result = original(self, *values, **named)
            if result.is_cuda:
                safe(run.span, "copy", begin)
            return result

        setattr(torch.Tensor, name, observed)

    observe("to", lambda tensor, _: not tensor.is_cuda)
    observe("cuda", lambda tensor, _: not tensor.is_cuda)
    observe("copy_", lambda tensor, values: tensor.is_cuda and not getattr(values[0] if values else tensor, "is_cuda", True))


# Tracebacks


def _hide(error: BaseException | None) -> None:
    """Takes our own frames out of a traceback."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        while error.__traceback__ is not None and _is_ours(error.__traceback__):
            error.__traceback__ = error.__traceback__.tb_next
        at = error.__traceback__
        while at is not None:
            while at.tb_next is not None and _is_ours(at.tb_next):
                at.tb_next = at.tb_next.tb_next
            at = at.tb_next
        error = error.__cause__ or error.__context__


def _is_ours(at: TracebackType) -> bool:
    return os.path.dirname(at.tb_frame.f_code.co_filename) == _OWN


def _hiding(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def hidden(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        safe(_hide, error)
        return hook(kind, error, error.__traceback__)

    return hidden


# All of them

PATCHES: dict[str, Callable[[Any], None]] = {
    "torch": _patch_torch,
    "torch.utils.data.dataloader": _patch_loader,
    "torch.utils.data._utils.worker": _patch_worker,
    "torch.utils.data._utils.fetch": _patch_fetch,
    "safetensors.torch": _patch_safetensors,
}
# What a child needs that may turn out to be a worker.
WORKER_PATCHES = ("torch.utils.data._utils.worker", "torch.utils.data._utils.fetch")
