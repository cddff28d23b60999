"""A text recipe without a loader: the loop itself tokenizes, and the accelerator stands still meanwhile."""

import argparse
import random
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def make_texts(count, words):
    rng = random.Random(0)
    known = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 12))) for _ in range(2000)]
    return [" ".join(rng.choices(known, k=words)) for _ in range(count)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--words", type=int, default=20000)
    args = parser.parse_args()

    texts = make_texts(4, args.words)
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts[:1], trainers.BpeTrainer(vocab_size=500, special_tokens=["[UNK]"]))
    tokens = 0
    for step in range(args.steps):
        ids = tokenizer.encode(texts[step % len(texts)]).ids
        batch = torch.tensor([ids])
        time.sleep(0.05)
        tokens += batch.numel()
    print(f"trained on {tokens} tokens")


if __name__ == "__main__":
    main()
