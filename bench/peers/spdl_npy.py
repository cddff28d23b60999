"""SPDL over .npy files: a whole batch an item, because a hand-over costs about as much as a short sample.

Tried: 1, 2 (kept) and 3 threads, and what npy.py lists.
"""

from spdl.pipeline import PipelineBuilder

from . import measure, npy


def main():
    args = measure.arguments("npy", batch_size=64, workers=2, load="sample")
    measure.one_thread()
    paths = measure.files(args)
    chunks = [paths[at : at + args.batch_size] for at in range(0, len(paths), args.batch_size)]

    def usual(chunk):
        return npy.pad([npy.load_sample(path) for path in chunk])

    def epoch():
        builder = PipelineBuilder().add_source(chunks)
        op = npy.load_batch if args.load == "direct" else usual
        builder = builder.pipe(op, concurrency=args.workers, output_order="input")
        pipeline = builder.add_sink(4).build(num_threads=args.workers, max_failures=0)
        with pipeline.auto_stop():
            yield from pipeline

    measure.run(args, "spdl", {"threads": args.workers, "load": args.load, "torch_threads": 1}, epoch)


if __name__ == "__main__":
    main()
