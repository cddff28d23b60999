"""torch DataLoader + soundfile + WhisperFeatureExtractor.

Tried: features per clip (kept) or per batch of 16 (half the rate); 1 (kept) and 2 intra-op threads (half the rate);
prefetch 2, 4, 8 (no difference); the default collate or writing each clip into its row of the batch (3 % better, kept).
"""

import torch
from torch.utils.data import DataLoader, Dataset

from . import audio, measure


class Clips(Dataset):
    def __init__(self, paths, mel):
        self.paths, self.mel = paths, audio.mel_named(mel)

    def __len__(self):
        return len(self.paths)

    def __getitems__(self, indices):
        batch = torch.empty(len(indices), 80, 3000)
        for row, index in zip(batch, indices, strict=True):
            self.mel(audio.decode(self.paths[index]), row)
        return batch


def main():
    args = measure.arguments("audio", batch_size=16, workers=0, prefetch=4, mel="whisper")
    measure.one_thread()
    paths = measure.files(args)
    workers = {"persistent_workers": True, "prefetch_factor": args.prefetch} if args.workers else {}
    loader = DataLoader(
        Clips(paths, args.mel), args.batch_size, num_workers=args.workers, collate_fn=lambda batch: batch, **workers
    )
    settings = {"workers": args.workers, "mel": args.mel, "torch_threads": 1, "resampler": "soxr MQ", **workers}
    measure.run(args, "torch", settings, lambda: iter(loader), audio.seconds(paths))


if __name__ == "__main__":
    main()
