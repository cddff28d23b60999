"""Hugging Face tokenizers alone: encode_batch or encode_batch_fast (no offsets) on chunks of documents.

Tried: chunks of 64 (kept), 256, 1000, 4000 documents, TOKENIZERS_PARALLELISM true and false. compare.py runs both calls,
each with both; the fastest counts.
"""

import os

from . import measure, text


def main():
    args = measure.arguments(
        "text", batch_size=16, workers=2, documents=64, call="encode_batch_fast", parallel="true", tokenizer=None
    )
    os.environ["TOKENIZERS_PARALLELISM"] = args.parallel
    os.environ["RAYON_NUM_THREADS"] = str(max(1, args.workers))
    tokenizer, end = text.tokenizer(args)
    encode = getattr(tokenizer, args.call)

    def epoch():
        arrays = (text.join(encode(chunk), end) for chunk in text.chunks(args.data, args.documents))
        return text.pack(arrays, args.batch_size)

    settings = {"call": args.call, "parallel": args.parallel, "documents": args.documents, "threads": args.workers}
    measure.run(args, "tokenizers", settings, epoch)


if __name__ == "__main__":
    main()
