"""Keeps a GPU fed while a model trains, and when it starves, says why and what will fix it.

    import feedwater as fw

    loader = (fw.open("data/morse").decode(16_000).log_mel(80).tokenize("tokenizer.json")
                .batch(16).seed(7).torch(device="cuda"))
    for batch in loader:
        loss = model(**batch).loss

`feedwater.torch.DataLoader` takes the place of torch's for people who have a `Dataset`.
"""

from feedwater._core import __version__
from feedwater.pipeline import Batch, Loader, Pipeline, open
from feedwater.presets import npy, text, whisper
from feedwater.profiling import Profile, profile

__all__ = [
    "Batch",
    "Loader",
    "Pipeline",
    "Profile",
    "__version__",
    "npy",
    "open",
    "profile",
    "text",
    "whisper",
]
