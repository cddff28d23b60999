"""SPDL: its thread pool, its WAV reader, WhisperFeatureExtractor.

Tried: a stage a clip then aggregate, or a whole batch an item; 1, 2 and 3 threads; decoding by spdl.io.load_audio (FFmpeg,
resampling included) or soundfile + soxr. No difference between items or thread counts; kept a batch an item. Kept for
decoding: spdl.io.load_wav for WAV, soundfile for FLAC and MP3, each of which beats FFmpeg here by a tenth or more (and needs
no FFmpeg on the machine). `--decoder ffmpeg` and `--item clip` give the others.
"""

from pathlib import Path

import numpy as np
import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from . import audio, measure


def load_wav(path):
    samples = np.asarray(spdl.io.load_wav(Path(path).read_bytes()))
    if samples.dtype != np.int16 or samples.shape[1] != 1:
        raise ValueError(f"`{path}` is not 16-bit mono")
    return samples[:, 0].astype(np.float32) * np.float32(1 / 32768)


def load_ffmpeg(path):
    to_16k_mono = spdl.io.get_audio_filter_desc(sample_rate=audio.RATE, num_channels=1)
    return spdl.io.to_numpy(spdl.io.load_audio(path, filter_desc=to_16k_mono))[0]


def main():
    args = measure.arguments("audio", batch_size=16, workers=2, mel="whisper", decoder="best", item="batch")
    measure.one_thread()
    paths = measure.files(args)
    mel = audio.mel_named(args.mel)
    if args.decoder == "ffmpeg":
        decode = load_ffmpeg
    else:
        decode = load_wav if paths[0].endswith(".wav") else audio.decode

    def clip(path):
        row = torch.empty(80, 3000)
        mel(decode(path), row)
        return row

    def batch(chunk):
        out = torch.empty(len(chunk), 80, 3000)
        for row, path in zip(out, chunk, strict=True):
            mel(decode(path), row)
        return out

    chunks = [paths[at : at + args.batch_size] for at in range(0, len(paths), args.batch_size)]

    def epoch():
        if args.item == "batch":
            builder = PipelineBuilder().add_source(chunks)
            builder = builder.pipe(batch, concurrency=args.workers, output_order="input")
        else:
            builder = PipelineBuilder().add_source(paths)
            builder = builder.pipe(clip, concurrency=args.workers, output_order="input")
            builder = builder.aggregate(args.batch_size).pipe(torch.stack)
        pipeline = builder.add_sink(4).build(num_threads=args.workers, max_failures=0)
        with pipeline.auto_stop():
            yield from pipeline

    settings = {
        "threads": args.workers, "mel": args.mel, "decoder": decode.__name__, "item": args.item, "torch_threads": 1,
    }  # fmt: skip
    measure.run(args, "spdl", settings, epoch, audio.seconds(paths))


if __name__ == "__main__":
    main()
