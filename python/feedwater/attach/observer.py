"""When does a run begin to be observed, and when is it over?

Nothing is imported for the script: an import hook waits for the modules that matter, and has them patched once they are
there (`hooks.py`).

One process owns a record: the first, or the first of each rank. Its number is in the environment. Worker processes of its
loaders write beside it; other children observe nothing.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from . import hooks
from .hooks import FOLDER, LOG, OWNER, PATCHES, WORKER_PATCHES, log_failure, safe
from .run import Run

_RECORD = "FEEDWATER_ATTACH_RECORD"
_OWNER_RANK = "FEEDWATER_ATTACH_OWNER_RANK"
_HERE = os.path.dirname(os.path.abspath(__file__))
# They only start the processes that train.
_LAUNCHERS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)

class _Finder(importlib.abc.MetaPathFinder):
    """Waits for modules, and patches them when they have been run."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.pop(fullname, None)
        if patch is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    self._wrap(spec.loader, patch)
                return spec
        return None

    @staticmethod
    def _wrap(loader: Any, patch: Callable[[Any], None]) -> None:
        run_module = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            safe(patch, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            log_failure()


def _rank_suffix(rank: str) -> str:
    return f".rank{rank}" if rank.isdigit() and int(rank) > 0 else ""


def _is_launcher() -> bool:
    words = list(getattr(sys, "orig_argv", []))[1:4]
    return any(os.path.basename(word).removesuffix(".exe") in _LAUNCHERS for word in words)


def _number(name: str, default: int) -> int:
    try:
        return max(int(os.environ.get(name, default)), 0)
    except ValueError:
        return default


def _install(patches: dict[str, Callable[[Any], None]]) -> None:
    """Patches the modules that are there, and the others when they come. Once in a process is enough."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    for name in list(patches):
        module = sys.modules.get(name)
        if module is not None:
            safe(patches.pop(name), module)
    sys.meta_path.insert(0, _Finder(patches))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=hooks.end)


def _folder() -> str:
    """Where workers write what they saw. It is made when there are some."""
    return os.path.join(tempfile.gettempdir(), f"feedwater-attach-{os.getpid()}-{time.time_ns()}")


def start() -> None:
    """Begins to observe this process, if it is one to observe."""
    path = os.environ.get(_RECORD)
    if not path:
        return
    rank = os.environ.get("RANK", "")
    owner = os.environ.get(OWNER)
    if owner is not None and (not rank or os.environ.get(_OWNER_RANK) == rank):
        _install({name: PATCHES[name] for name in WORKER_PATCHES})
        return
    if _is_launcher():
        return
    os.environ[OWNER] = str(os.getpid())
    os.environ[_OWNER_RANK] = rank
    folder = os.environ[FOLDER] = _folder()
    run = Run(
        os.path.abspath(path) + _rank_suffix(rank),
        _number("FEEDWATER_ATTACH_MAX_STEPS", 0),
        _number("FEEDWATER_ATTACH_REPLAY", 12),
        log_failure,
    )
    hooks.begin(run)
    atexit.register(_finish, run, folder)
    _install(dict(PATCHES))


def _finish(run: Run, folder: str) -> None:
    if os.getpid() == run.pid:
        safe(run.finish)
        shutil.rmtree(folder, ignore_errors=True)


class Observation:
    """A part of a program that is observed from within.

    Worker processes that are not forked are told by the environment, as they are when a whole script is observed.
    """

    def __init__(self, record: str, name: str) -> None:
        self.run = Run(record, 0, 0, log_failure, name)
        self._folder = _folder()
        path = os.pathsep.join(filter(None, (_HERE, os.environ.get("PYTHONPATH"))))
        wanted = {_RECORD: record, OWNER: str(os.getpid()), _OWNER_RANK: os.environ.get("RANK", ""), FOLDER: self._folder}
        wanted |= {"PYTHONPATH": path, LOG: os.path.join(self._folder, "log")}
        self._before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        os.makedirs(self._folder, exist_ok=True)
        hooks.begin(self.run)
        _install(dict(PATCHES))

    def end(self) -> str:
        """Ends it. What could not be observed is given back."""
        hooks.end()
        self.run.finish()
        try:
            with open(os.environ[LOG], encoding="utf-8") as log:
                failed = log.read()
        except OSError:
            failed = ""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self._folder, ignore_errors=True)
        return failed
