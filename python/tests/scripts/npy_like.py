"""A recipe on features in .npy files, with noise and masks made for each sample."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Features(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        features = np.load(self.files[index])
        features = add_noise(features)
        features = mask_time(features)
        return torch.from_numpy(features)


def add_noise(features):
    noise = np.random.randn(*features.shape)
    return features + 0.1 * noise.astype(np.float32)


def mask_time(features):
    begin = np.random.randint(0, len(features) - 20)
    features[begin : begin + 20] = 0.0
    return features


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--start", default=None)
    parser.add_argument("--fail-at", type=int, default=-1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    files = []
    for number in range(32):
        files.append(args.folder / f"{number:03}.npy")
        np.save(files[-1], np.zeros((400, 128), dtype=np.float32))
    dataset = Features(files * (2 * args.steps))
    loader = DataLoader(dataset, batch_size=64, num_workers=args.workers, multiprocessing_context=args.start)
    for step, features in enumerate(loader):
        time.sleep(0.02)
        if step == args.fail_at:
            raise ValueError("the script's own error")
    print(f"trained on {len(dataset)} samples, {tuple(features.shape)}")


if __name__ == "__main__":
    main()
