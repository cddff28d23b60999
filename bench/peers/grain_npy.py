"""Grain's threads over .npy files.

Tried: `.map` a sample then `.batch` (`--load sample`), and a whole batch an element (`--load direct`); 1, 2 (kept) and 16
(its default) threads.
"""

import grain

from . import measure, npy


def main():
    args = measure.arguments("npy", batch_size=64, workers=2, load="sample")
    measure.one_thread()
    paths = measure.files(args)
    if args.load == "direct":
        chunks = [paths[at : at + args.batch_size] for at in range(0, len(paths), args.batch_size)]
        dataset, buffer = grain.MapDataset.source(chunks).map(npy.load_batch), 4
    else:
        dataset, buffer = grain.MapDataset.source(paths).map(npy.load_sample), 2 * args.batch_size
    dataset = dataset.to_iter_dataset(grain.ReadOptions(num_threads=args.workers, prefetch_buffer_size=buffer))
    if args.load != "direct":
        dataset = dataset.batch(args.batch_size, drop_remainder=False, batch_fn=npy.pad)
    settings = {"threads": args.workers, "load": args.load, "buffer": buffer, "torch_threads": 1}
    measure.run(args, "grain", settings, lambda: iter(dataset))


if __name__ == "__main__":
    main()
