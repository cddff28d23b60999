"""Hugging Face datasets: features made once with map() into its Arrow cache, then read from there.

`--build` writes the cache and prints what that took. Read: `--read iter` is `with_format("numpy").iter(batch_size)`, as its
documentation has it; `--read column` takes the rows out of the Arrow column without a copy through Python and copies them
into a batch that is used again, as an expert would. Tried: with_format("torch") (slower than numpy), batched=True.
"""

import json
import os
import tempfile
import time

_home = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = _home.name  # before `datasets` is imported: it reads this once
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np

from . import audio, measure


def main():
    args = measure.arguments("audio", batch_size=16, read="iter", cache="", build="")
    datasets.disable_progress_bars()
    measure.one_thread()
    file = os.path.join(args.cache, "features.arrow")
    shape = datasets.Features({"input_features": datasets.Array2D((80, 3000), "float32")})
    if args.build:
        mel = audio.mel_named("hand")

        def make(row):
            import torch

            out = torch.empty(80, 3000)
            mel(audio.decode(row["path"]), out)
            return {"input_features": out.numpy()}

        began, cpu = time.perf_counter(), measure.cpu_seconds()
        paths = datasets.Dataset.from_dict({"path": measure.files(args)})
        paths.map(make, cache_file_name=file, features=shape, remove_columns=["path"], writer_batch_size=64)
        took = {"wall_seconds": time.perf_counter() - began, "cpu_seconds": measure.cpu_seconds() - cpu}
        print(json.dumps(took), flush=True)
        return
    kept = datasets.Dataset.from_file(file)
    batch = np.empty((args.batch_size, 80, 3000), np.float32)

    def epoch():
        if args.read == "iter":
            for rows in kept.with_format("numpy").iter(args.batch_size):
                yield rows["input_features"]
            return
        for chunk in kept.data.column("input_features").chunks:
            storage = chunk.storage if hasattr(chunk, "storage") else chunk
            while not hasattr(storage, "to_numpy") or str(storage.type).startswith(("list", "large_list", "fixed")):
                storage = storage.flatten()
            numbers = storage.to_numpy(zero_copy_only=True).reshape(-1, 80, 3000)
            for at in range(0, len(numbers), args.batch_size):
                rows = numbers[at : at + args.batch_size]
                batch[: len(rows)] = rows
                yield batch[: len(rows)]

    measure.run(args, "datasets", {"read": args.read}, epoch)


if __name__ == "__main__":
    main()
