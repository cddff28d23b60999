"""Per-example tokenization in a torch DataLoader, as most fine-tuning scripts have it.

Workers tokenize documents one by one and return the ids of `--documents` of them as one array (a tensor a document costs a
file descriptor and a copy each); the main process packs. Tried, k tokens per CPU-s: encode 460, a transformers tokenizer
470, encode_batch_fast on one document 620 (kept: no offsets); 16, 64 (kept), 256 documents.
"""

import json
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from torch.utils.data import DataLoader, Dataset

from . import measure, text


class Documents(Dataset):
    def __init__(self, path, tokenizer):
        self.path, self.tokenizer, self.file = path, tokenizer, None
        with open(path, "rb") as file:
            self.offsets = [0]
            for line in file:
                self.offsets.append(self.offsets[-1] + len(line))

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        if self.file is None:  # opened after the fork, so that workers do not share a file position
            self.file = open(self.path, "rb")
        start, end = self.offsets[index : index + 2]
        self.file.seek(start)
        return self.tokenizer.encode_batch_fast([json.loads(self.file.read(end - start))["text"]])[0]


def main():
    args = measure.arguments("text", batch_size=16, workers=0, prefetch=4, documents=64, tokenizer=None)
    measure.one_thread()
    tokenizer, end = text.tokenizer(args)
    workers = {"persistent_workers": True, "prefetch_factor": args.prefetch} if args.workers else {}
    loader = DataLoader(
        Documents(args.data, tokenizer), args.documents, num_workers=args.workers,
        collate_fn=lambda encodings: text.join(encodings, end), **workers,
    )  # fmt: skip
    settings = {"workers": args.workers, "documents": args.documents, **workers}
    measure.run(args, "torch", settings, lambda: text.pack(loader, args.batch_size))


if __name__ == "__main__":
    main()
