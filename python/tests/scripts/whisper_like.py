"""A speech recipe as it is often written: a DataLoader whose workers load audio and extract features."""

import argparse
import time
from pathlib import Path

import librosa
import numpy as np
import soundfile as sf
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperFeatureExtractor


class Clips(Dataset):
    def __init__(self, files, extractor):
        self.files = files
        self.extractor = extractor

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        audio, rate = librosa.load(self.files[index], sr=16000)
        features = self.extractor(audio, sampling_rate=rate, return_tensors="np")
        return torch.from_numpy(features.input_features[0])


def make_clips(folder, count, seconds, kind):
    rng = np.random.default_rng(0)
    files = []
    for number in range(count):
        audio = 0.1 * rng.standard_normal(16000 * seconds).astype(np.float32)
        files.append(folder / f"clip{number:03}.{kind}")
        sf.write(files[-1], audio, 16000)
    return files


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--format", default="wav")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--start", default=None)
    args = parser.parse_args()

    files = make_clips(args.folder, 16, args.seconds, args.format)
    audio, rate = librosa.load(files[0], sr=16000)
    print(f"{len(files)} files, the first of {len(audio) / rate:.0f} s")
    clips = Clips(files * (args.steps // 2), WhisperFeatureExtractor(chunk_length=2))
    loader = DataLoader(clips, batch_size=8, num_workers=args.workers, multiprocessing_context=args.start)
    for features in loader:
        time.sleep(0.06)
    print(f"trained on {len(clips)} clips, {tuple(features.shape)}")


if __name__ == "__main__":
    main()
