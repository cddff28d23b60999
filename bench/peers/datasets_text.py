"""Hugging Face datasets: load_dataset("json"), then map(batched=True) with encode_batch_fast, then pack.

Every run writes to an empty cache folder, so the work is done, not remembered. `--mode map` writes Arrow and packs from its
column without a copy through Python; `--mode stream` is load_dataset(streaming=True), at a third of the rate. Tried: batches
of 100, 1000 (kept), 4000, TOKENIZERS_PARALLELISM true and false (both are rows).
"""

import os
import tempfile

_cache = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = _cache.name  # before `datasets` is imported: it reads this once
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np

from . import measure, text


def main():
    args = measure.arguments(
        "text", batch_size=16, workers=2, documents=1000, mode="map", parallel="true", tokenizer=None
    )
    os.environ["TOKENIZERS_PARALLELISM"] = args.parallel
    os.environ["RAYON_NUM_THREADS"] = str(max(1, args.workers))
    datasets.disable_progress_bars()
    tokenizer, end = text.tokenizer(args)

    def encode(batch):
        ids = []
        for encoding in tokenizer.encode_batch_fast(batch["text"]):
            one = encoding.ids
            one.append(end)
            ids.append(np.array(one, dtype=np.int64))
        return {"ids": ids}

    def epoch():
        streaming = args.mode == "stream"
        with tempfile.TemporaryDirectory(dir=_cache.name) as cache:
            loaded = datasets.load_dataset(
                "json", data_files=str(args.data), split="train", streaming=streaming, cache_dir=cache
            )
            more = {} if streaming else {"load_from_cache_file": False}
            mapped = loaded.map(encode, batched=True, batch_size=args.documents, remove_columns=["text"], **more)
            if streaming:
                arrays = (np.concatenate(batch["ids"]) for batch in mapped.with_format("numpy").iter(args.documents))
            else:
                column = mapped.data.column("ids")
                arrays = (chunk.flatten().to_numpy() for chunk in column.chunks)
            yield from text.pack(arrays, args.batch_size)

    settings = {"mode": args.mode, "documents": args.documents, "parallel": args.parallel}
    measure.run(args, "datasets", settings, epoch)


if __name__ == "__main__":
    main()
