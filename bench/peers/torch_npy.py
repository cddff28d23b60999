"""torch DataLoader over .npy files, `--load sample` (as usually written) or `--load direct` (by hand, see npy.py).

Tried: 0 and 2 workers (both are rows), prefetch 2 and 4 (no difference), and what npy.py lists.
"""

from torch.utils.data import DataLoader, Dataset

from . import measure, npy


class Samples(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return npy.load_sample(self.paths[index])


class Direct(Samples):
    def __getitems__(self, indices):
        return npy.load_batch([self.paths[index] for index in indices])


def main():
    args = measure.arguments("npy", batch_size=64, workers=0, prefetch=4, load="sample")
    measure.one_thread()
    paths = measure.files(args)
    workers = {"persistent_workers": True, "prefetch_factor": args.prefetch} if args.workers else {}
    if args.load == "direct":
        dataset, collate = Direct(paths), lambda batch: batch
    else:
        dataset, collate = Samples(paths), npy.pad
    loader = DataLoader(dataset, args.batch_size, num_workers=args.workers, collate_fn=collate, **workers)
    settings = {"workers": args.workers, "load": args.load, "torch_threads": 1, **workers}
    measure.run(args, "torch", settings, lambda: iter(loader))


if __name__ == "__main__":
    main()
