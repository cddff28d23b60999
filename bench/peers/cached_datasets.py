"""Hugging Face datasets: features made once with map() into its Arrow cache, then read from there.

`--build` writes the cache and prints what that took. `--read` is how rows become batches, in a new random order each epoch, as
training has them:

    loader   torch's DataLoader(shuffle=True) over with_format("torch"), as its documentation has it
    rows     with_format("numpy")[indices], a list of random indices a batch
    iter     with_format("numpy").shuffle(seed).iter(batch_size)
    column   rows copied by hand out of the Arrow column, into a batch that is used again: no function of datasets reads so
    order    with_format("numpy").iter(batch_size), the same order each epoch: not what training does
    nothing  one number into every place of three batches by turns: what writing alone takes, for a loader that makes ahead

`--dtype` is what is kept and read: float32 or float16.
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
import torch

from . import audio, measure


def main():
    args = measure.arguments("audio", batch_size=16, read="rows", cache="", build="", dtype="float32")
    datasets.disable_progress_bars()
    measure.one_thread()
    file = os.path.join(args.cache, "features.arrow")
    shape = datasets.Features({"input_features": datasets.Array2D((80, 3000), args.dtype)})
    if args.build:
        mel = audio.mel_named("hand")

        def make(row):
            out = torch.empty(80, 3000)
            mel(audio.decode(row["path"]), out)
            return {"input_features": out.numpy().astype(args.dtype)}

        began, cpu = time.perf_counter(), measure.cpu_seconds()
        paths = datasets.Dataset.from_dict({"path": measure.files(args)})
        paths.map(make, cache_file_name=file, features=shape, remove_columns=["path"], writer_batch_size=64)
        took = {"wall_seconds": time.perf_counter() - began, "cpu_seconds": measure.cpu_seconds() - cpu}
        print(json.dumps(took), flush=True)
        return
    kept = datasets.Dataset.from_file(file)
    batches = np.zeros((3, args.batch_size, 80, 3000), args.dtype)
    batch = batches[0]
    column = []
    for chunk in kept.data.column("input_features").chunks:
        storage = chunk.storage if hasattr(chunk, "storage") else chunk
        while not hasattr(storage, "to_numpy") or str(storage.type).startswith(("list", "large_list", "fixed")):
            storage = storage.flatten()
        column.extend(storage.to_numpy(zero_copy_only=True).reshape(-1, 80, 3000))

    orders = np.random.default_rng(0)

    def epoch():
        order = orders.permutation(len(kept))
        size = args.batch_size
        if args.read == "loader":
            rows = torch.utils.data.DataLoader(kept.with_format("torch"), batch_size=size, shuffle=True)
            yield from (batch["input_features"].numpy() for batch in rows)
        elif args.read == "rows":
            rows = kept.with_format("numpy")
            yield from (rows[order[at : at + size].tolist()]["input_features"] for at in range(0, len(kept), size))
        elif args.read in ("iter", "order"):
            rows = kept.with_format("numpy")
            rows = rows.shuffle(seed=int(order[0]), keep_in_memory=True) if args.read == "iter" else rows
            yield from (batch["input_features"] for batch in rows.iter(size))
        elif args.read == "nothing":
            for number, at in enumerate(range(0, len(kept), size)):
                rows = batches[number % 3, : min(size, len(kept) - at)]
                for row in rows:
                    row.fill(number + 1)
                yield rows
        else:
            for at in range(0, len(kept), size):
                some = order[at : at + size]
                for row, index in zip(batch, some, strict=False):
                    row[:] = column[index]
                yield batch[: len(some)]

    measure.run(args, "datasets", {"read": args.read}, epoch)


if __name__ == "__main__":
    main()
