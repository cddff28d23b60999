"""How does the observer get into a script that knows nothing of it?

Python imports `sitecustomize` before it runs a script. Another one may lie further on the path (Debian has one): it is run
as it would have been. Then the observer starts, and this folder leaves the path, so that the script finds only its own
modules. Nothing in here may break the script: what fails goes to the file that `FEEDWATER_ATTACH_LOG` names.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _is_here(entry: str) -> bool:
    try:
        return os.path.realpath(entry or os.curdir) == os.path.realpath(_FOLDER)
    except (OSError, ValueError):
        return False


def _start() -> None:
    try:
        # Under a name of its own: a script may well have an `observer.py`.
        package = types.ModuleType("_feedwater_attach")
        package.__path__ = [_FOLDER]
        sys.modules["_feedwater_attach"] = package
        importlib.import_module("_feedwater_attach.observer").start()
    except Exception:  # noqa: BLE001
        try:
            import traceback

            with open(os.environ["FEEDWATER_ATTACH_LOG"], "a", encoding="utf-8") as log:
                log.write(traceback.format_exc())
        except Exception:  # noqa: BLE001
            pass


def _run_the_other() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    # What it raises is reported by `site`, as without us.
    spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if not _is_here(entry)]
try:
    _run_the_other()
finally:
    _start()
