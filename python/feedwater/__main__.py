"""How is the command started from the wheel? `feedwater …` and `python -m feedwater …` are the same program."""

import os
import signal
import sys

from feedwater import _core


def main() -> int:
    """Runs the `feedwater` command with the arguments of this process."""
    # `train` has PyTorch do it in a process of this Python.
    os.environ.setdefault("FEEDWATER_PYTHON", sys.executable)
    # Ctrl-C ends the command at once, as it does where it is a program of its own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.main(["feedwater", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
