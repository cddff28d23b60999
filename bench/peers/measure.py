"""How every peer is measured: one process, one JSON line.

The clock starts when iteration starts, after imports and after the data set is built, and stops after the last batch.
CPU seconds are user + system of the process, of children that ended, and of children that still live, so a worker
process is counted in full from its fork.
"""

import os

# Before numpy and torch load: a BLAS that spins up threads of its own would be counted against the peer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import argparse
import ctypes
import json
import resource
import time
from pathlib import Path

import numpy as np
import psutil


def arguments(lane, **defaults):
    """The flags that all peers of a lane share. `defaults` are the peer's best settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="the folder of files (text: the .jsonl file)")
    parser.add_argument("--batch-size", type=int, default=defaults.pop("batch_size"))
    parser.add_argument("--workers", type=int, default=defaults.pop("workers", 0), help="processes, or threads")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--warm", type=int, default=0, help="epochs before the clock starts")
    parser.add_argument("--dump", type=Path, help="write the first four samples here as .npy, to compare")
    parser.add_argument("--hash", action="store_true", help="text: hash all ids (outside the figures that count)")
    parser.add_argument("--keep-memory", action="store_true", help="tell malloc to keep freed memory")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the output is always JSON")
    for name, value in defaults.items():
        kind = type(value) if value is not None else str
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=value)
    args = parser.parse_args()
    args.lane = lane
    if args.keep_memory:
        keep_memory()
    return args


def keep_memory():
    """Stops glibc from giving each large array back to the kernel when it is freed.

    Without this, every batch pays a page fault for each 4 KiB of each temporary array. It is not a setting of any peer,
    but an expert would use it, so the rows marked "tuned" do.
    """
    m_trim_threshold, m_mmap_max = -1, -4
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        raise SystemExit("--keep-memory needs glibc") from None
    if not (mallopt(m_mmap_max, 0) and mallopt(m_trim_threshold, 2**31 - 1)):
        raise SystemExit("mallopt refused --keep-memory")


def one_thread():
    """Torch with one intra-op thread. Two threads cost about twice the CPU for the same mel."""
    import torch

    torch.set_num_threads(1)


def files(args):
    found = sorted(path for path in args.data.iterdir() if not path.name.startswith("."))
    if not found:
        raise SystemExit(f"no files in `{args.data}`")
    return [str(path) for path in found]


def cpu_seconds():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile, and is in RUSAGE_CHILDREN
        # Grandchildren that a child reaped are in its own `children_*` figures.
        total += times.user + times.system + times.children_user + times.children_system
    return total


def peak_mb():
    """The high-water marks of this process and its living children, added up.

    Pages that forked workers share are counted twice here; compare.py samples proportional memory (PSS) instead.
    """
    total_kb = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        total_kb += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
    return total_kb / 1024


def run(args, peer, settings, epoch, audio_seconds=None):
    """Iterates `epoch()` (a new iterator over batches) `args.epochs` times and prints the JSON line."""
    look = {"audio": look_audio, "npy": look_npy, "text": look_text}[args.lane]
    count, first, dump, blocks = 0, None, None, []
    for _ in range(args.warm):
        for batch in epoch():
            look(batch)
    cpu_start, start = cpu_seconds(), time.perf_counter()
    for _ in range(args.epochs):
        for batch in epoch():
            if first is None:
                first = time.perf_counter() - start
                if args.dump:
                    dump = look(batch)[:4].copy()
            # Reading the shape through numpy copies nothing; it is proof that the batch is there and is the right one.
            count += len(look(batch))
            if args.hash:
                blocks.append(look(batch).copy())
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu_start

    line = {
        "peer": peer,
        "lane": args.lane,
        "settings": settings | ({"malloc": "keeps freed memory"} if args.keep_memory else {}),
        "clips": count,
        "audio_seconds": audio_seconds * args.epochs if audio_seconds else None,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "first_batch_seconds": first,
        "peak_rss_mb": peak_mb(),
    }
    if args.lane == "text":
        line["tokens"] = count * 512
        if args.hash:
            line["output_hash"] = hash_blocks(blocks)
    if dump is not None:
        np.save(args.dump, dump)
    print(json.dumps(line), flush=True)


def look_audio(batch):
    array = np.asarray(batch)
    if array.shape[1:] != (80, 3000) or array.dtype not in (np.float32, np.float16):
        raise SystemExit(f"not a Whisper batch: {array.shape} {array.dtype}")
    return array


def look_npy(batch):
    padded, lengths = np.asarray(batch[0]), np.asarray(batch[1])
    if padded.shape != (len(lengths), lengths.max(), 128) or padded.dtype != np.float32:
        raise SystemExit(f"not a padded batch: {padded.shape} {padded.dtype}")
    return padded


def look_text(batch):
    array = np.asarray(batch)
    if array.shape[1:] != (512,) or array.dtype != np.int64:
        raise SystemExit(f"not packed blocks: {array.shape} {array.dtype}")
    return array


def hash_blocks(blocks):
    """sha256 over the little-endian int64 ids of all blocks, in file order."""
    import hashlib

    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block, dtype="<i8"))
    return digest.hexdigest()
