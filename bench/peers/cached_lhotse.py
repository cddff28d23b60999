"""lhotse: features made once with compute_and_store_features, then read with load_features, filled up to 30 s.

`--build` writes them and prints what that took. `--storage lilcom` is lhotse's default (compressed, not exact), `numpy` a
file a clip, which is faster to read. Only the sound's own frames are stored, as lhotse does.
"""

import json
import os
import time

import numpy as np
import torch
from lhotse import CutSet, LilcomChunkyWriter, MonoCut, NumpyFilesWriter, Recording
from lhotse.audio.backend import set_current_audio_backend
from lhotse.features.whisper_fbank import WhisperFbank

from . import audio, measure

WRITERS = {"lilcom": LilcomChunkyWriter, "numpy": NumpyFilesWriter}


def main():
    args = measure.arguments("audio", batch_size=16, storage="numpy", cache="", build="")
    measure.one_thread()
    set_current_audio_backend("LibsndfileBackend")
    manifest = os.path.join(args.cache, f"{args.storage}.jsonl")
    if args.build:
        began, cpu = time.perf_counter(), measure.cpu_seconds()
        cuts = []
        for path in measure.files(args):
            recording = Recording.from_file(path)
            cuts.append(MonoCut(recording.id, 0.0, recording.duration, 0, recording=recording))
        kept = CutSet.from_cuts(cuts).compute_and_store_features(
            WhisperFbank(), os.path.join(args.cache, args.storage), storage_type=WRITERS[args.storage], progress_bar=False
        )
        kept.drop_recordings().to_file(manifest)
        took = {"wall_seconds": time.perf_counter() - began, "cpu_seconds": measure.cpu_seconds() - cpu}
        print(json.dumps(took), flush=True)
        return
    cuts = list(CutSet.from_file(manifest))
    batch = torch.empty(args.batch_size, 80, 3000)

    orders = np.random.default_rng(0)

    def epoch():
        order = orders.permutation(len(cuts))
        for at in range(0, len(cuts), args.batch_size):
            some = [cuts[index] for index in order[at : at + args.batch_size]]
            for row, cut in zip(batch, some, strict=False):
                features = np.asarray(cut.load_features(), np.float32)
                frames = min(len(features), 3000)
                row[:, :frames] = torch.from_numpy(features[:frames]).T
                row[:, frames:] = max(float(features.max()) - 2.0, -1.5)
            yield batch[: len(some)].numpy()

    measure.run(args, "lhotse", {"storage": args.storage}, epoch)


if __name__ == "__main__":
    main()
