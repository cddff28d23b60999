"""Trains: `python -m feedwater.train RECIPE …`, which is what `feedwater train --engine torch` and torchrun start."""

from __future__ import annotations

import json
import sys

from feedwater import _core
from feedwater.train.settings import Settings, Wrong


def main(arguments: list[str]) -> int:
    """Trains as the arguments say. The exit code."""
    settings = Settings(json.loads(_core.train_options(arguments)))
    try:
        return _train(settings)
    except (Wrong, ValueError, OSError) as error:
        # Ours have a hint in their last line; nobody wants a stack for a folder that is not there.
        print(f"error: {_said(str(error), settings)}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        text = str(error)
        if type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            what = f"--compile failed: {(text.splitlines() or [type(error).__name__])[0]}"
            text = f"{what}\nhint: it needs a C++ compiler (g++, or MSVC on Windows); without --compile all is the same, only slower"
        elif "\nhint: " not in text:
            raise
        print(f"error: {_said(text, settings)}", file=sys.stderr)
        return 2


def _said(text: str, settings: Settings) -> str:
    """What the engine says, with a hint for who has flags and writes no pipeline."""
    what, _, hint = text.partition("\nhint: ")
    if "more than the ceiling of" in what:
        hint = "--bad-ceiling 5% lets more be left out; quarantine.jsonl in --output-dir says why each was"
    elif "nothing decodes the" in what:
        what = f"`{settings.data_dir}` has no text alone, and {settings.recipe} learns from text"
        hint = "`feedwater inspect` shows what it is; sound is for whisper and tts, arrays are for cnn-lstm"
    return f"{what}\nhint: {hint}" if hint else what


def _train(settings: Settings) -> int:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Wrong("there is no torch in this Python", f"{sys.executable} -m pip install torch transformers") from error
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise Wrong("there is no transformers in this Python", f"{sys.executable} -m pip install transformers") from error
    # The loop tells how it goes on.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # Not before: they import torch, which takes seconds and may not be there.
    from feedwater.train import cnn_lstm, lm, tts, whisper

    recipes = {"cnn-lstm": cnn_lstm.train, "lm": lm.train, "tts": tts.train, "whisper": whisper.train}
    return recipes[settings.recipe](settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
