"""What the text peers share: reading documents from JSONL, and packing ids into blocks.

Every document is followed by the end-of-text id; the stream of ids in file order is cut into blocks of 512; blocks travel
in batches. Ids that do not fill the last block are dropped; a last batch that is not full is kept.
"""

import json
from itertools import islice

import numpy as np
from tokenizers import Tokenizer

BLOCK = 512
END = "<|endoftext|>"


def tokenizer(args):
    path = args.tokenizer or args.data.parent / "tokenizer.json"
    loaded = Tokenizer.from_file(str(path))
    return loaded, loaded.token_to_id(END)


def documents(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def chunks(path, size):
    stream = documents(path)
    while chunk := list(islice(stream, size)):
        yield chunk


def join(encodings, end):
    """The ids of these documents, each followed by `end`, as one array."""
    ids = []
    for encoding in encodings:
        ids += encoding.ids
        ids.append(end)
    return np.array(ids, dtype=np.int64)


def pack(arrays, batch_size):
    """Arrays of ids, in order, as batches [n, 512]."""
    wanted, held, size = batch_size * BLOCK, [], 0
    for array in arrays:
        held.append(array)
        size += len(array)
        if size < wanted:
            continue
        joined, at = np.concatenate(held), 0
        while size - at >= wanted:
            yield joined[at : at + wanted].reshape(batch_size, BLOCK)
            at += wanted
        held, size = [joined[at:]], size - at
    whole = size // BLOCK * BLOCK
    if whole:
        yield np.concatenate(held)[:whole].reshape(-1, BLOCK)
