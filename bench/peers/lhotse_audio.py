"""lhotse: a CutSet, SimpleCutSampler, WhisperFbank, in a torch DataLoader.

Tried: cuts padded to 30 s before the features (twice the CPU); OnTheFlyFeatures on the sound alone (the same CPU, but its
padding is not Whisper's); 0 and 2 workers (both are rows). Kept: features of the sound alone, then filled up to 30 s with the
value that Whisper gives to silence. 44.1 kHz goes through lhotse's own resampler, as `Recording.resample` does.
"""

import numpy as np
import torch
from lhotse import CutSet, MonoCut, Recording
from lhotse.audio.backend import set_current_audio_backend
from lhotse.dataset import SimpleCutSampler
from lhotse.features.whisper_fbank import WhisperFbank
from torch.utils.data import DataLoader, Dataset

from . import audio, measure


class Cuts(Dataset):
    def __init__(self):
        self.extractor = WhisperFbank()

    def __getitem__(self, cuts):
        batch = torch.empty(len(cuts), 80, 3000)
        for row, cut in zip(batch, cuts, strict=True):
            wave = cut.load_audio()[0, : 30 * audio.RATE]
            # A frame and a half of silence, so that the last frames see what they would see in the padded clip.
            ends = min(30 * audio.RATE, (len(wave) + 359) // 160 * 160 + 160)
            features = self.extractor.extract(np.pad(wave, (0, max(0, ends - len(wave)))), audio.RATE)
            frames = min(len(features), 3000)
            row[:, :frames] = torch.from_numpy(features[:frames]).T
            row[:, frames:] = max(float(features.max()) - 2.0, -1.5)
        return batch


def main():
    args = measure.arguments("audio", batch_size=16, workers=0, prefetch=4)
    measure.one_thread()
    set_current_audio_backend("LibsndfileBackend")
    paths = measure.files(args)
    cuts = []
    for path in paths:
        recording = Recording.from_file(path)
        if recording.sampling_rate != audio.RATE:
            recording = recording.resample(audio.RATE)
        cuts.append(MonoCut(recording.id, 0.0, recording.duration, 0, recording=recording))
    cuts = CutSet.from_cuts(cuts)
    workers = {"persistent_workers": True, "prefetch_factor": args.prefetch} if args.workers else {}
    loader = DataLoader(
        Cuts(), batch_size=None, sampler=SimpleCutSampler(cuts, max_cuts=args.batch_size), num_workers=args.workers,
        **workers,
    )  # fmt: skip
    settings = {"workers": args.workers, "torch_threads": 1, "resampler": "lhotse sinc", **workers}
    measure.run(args, "lhotse", settings, lambda: iter(loader), audio.seconds(paths))


if __name__ == "__main__":
    main()
