"""What of errors, threads and processes of the ``DataLoader``? Each error comes in its place, and nothing stays behind."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from feedwater.dataloader import DataLoader  # noqa: E402
from torch.utils.data import DataLoader as TorchLoader  # noqa: E402
from torch.utils.data import IterableDataset, Sampler  # noqa: E402

from loaders import Batched, Count, Squares, same, threads  # noqa: E402

HERE = str(Path(__file__).parent)


class Broken(Squares):
    def __init__(self, error: Any, at: int = 9) -> None:
        super().__init__()
        self.error, self.at = error, at

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            raise self.error
        return index


class Coded(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.code = code


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("error", [ValueError("bad clip"), KeyError("k"), Coded(4, "why"), SystemExit(3)], ids=repr)
def test_an_error_in_the_dataset_comes_where_its_batch_is_due(error: Any, num_workers: int) -> None:
    iterator = iter(DataLoader(Broken(error), 4, num_workers=num_workers))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    assert next(iterator).tolist() == [4, 5, 6, 7]
    with pytest.raises(type(error)) as caught:
        next(iterator)
    assert caught.value is error
    shown = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    assert "in __getitem__" in shown
    if sys.version_info >= (3, 11):
        assert "sample 9 in feedwater" in shown
    assert next(iterator).tolist() == [12, 13, 14, 15], "as torch: the next batches can still be had"
    assert len(list(iterator)) == 2
    del caught, iterator, shown
    error.__traceback__ = None
    assert threads() == []


def test_an_error_that_was_caught_keeps_no_thread() -> None:
    gc.disable()  # so that a cycle would show
    try:
        for dataset in (Broken(ValueError("bad clip"), 0), Batched(0)):
            iterator = iter(DataLoader(dataset, sampler=range(9), num_workers=2))
            with pytest.raises((ValueError, IndexError)) as caught:
                next(iterator)
            assert iterator.last_input is not None
            del caught, iterator
            if isinstance(dataset, Broken):
                dataset.error.__traceback__ = None
            assert threads() == []
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stop_iteration_in_a_dataset_does_not_end_the_epoch_silently(num_workers: int) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DataLoader(Broken(StopIteration()), 4, num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_collate_and_in_a_sampler_comes_in_its_place(num_workers: int) -> None:
    def collate(batch: list[Any]) -> Any:
        if batch[0]["y"] == 16:
            raise LookupError("collate")
        return len(batch)

    iterator = iter(DataLoader(Squares(), 4, collate_fn=collate, num_workers=num_workers))
    assert next(iterator) == 4
    with pytest.raises(LookupError, match="collate"):
        next(iterator)
    assert list(iterator) == [4, 4, 4, 3]

    def indices() -> Any:
        yield from range(6)
        raise OSError("sampler")

    class Failing(Sampler):
        def __iter__(self) -> Any:
            return indices()

    iterator = iter(DataLoader(Squares(), 2, sampler=Failing(), collate_fn=len, num_workers=num_workers))
    assert [next(iterator) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(OSError, match="sampler"):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_an_iterable_dataset_comes_in_its_place(num_workers: int) -> None:
    class Failing(IterableDataset):
        def __iter__(self) -> Any:
            yield from range(6)
            raise OSError("stream")

    iterator = iter(DataLoader(Failing(), 4, num_workers=num_workers))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="stream") as caught:
        next(iterator)
    assert iterator.last_input is not None
    assert getattr(caught.value, "__notes__", ["sample 6"])[0].startswith(("raised for sample 6", "sample 6"))
    assert list(iterator) == []


def test_the_first_of_several_bad_samples_is_named() -> None:
    both = threading.Barrier(2)

    class Two(Squares):
        def __getitem__(self, index: int) -> int:
            if index < 2:
                both.wait()
                raise ValueError(f"sample {index}")
            return index

    with pytest.raises(ValueError, match="sample 0"):
        next(iter(DataLoader(Two(), 4, num_workers=2)))


def test_worker_init_fn_runs_in_each_thread_and_its_error_is_raised() -> None:
    called: dict[int, int] = {}
    list(DataLoader(Squares(), num_workers=3, worker_init_fn=lambda i: called.update({i: threading.get_ident()})))
    assert sorted(called) == [0, 1, 2]
    assert threading.get_ident() not in called.values()

    def refuse(worker: int) -> None:
        if worker == 1:
            raise PermissionError("no")

    iterator = iter(DataLoader(Squares(), num_workers=3, worker_init_fn=refuse))
    for _ in range(2):
        with pytest.raises(PermissionError, match="no"):
            next(iterator)
    assert threads() == []


def test_a_timeout_is_torchs_and_can_be_waited_out() -> None:
    gate = threading.Event()

    class Slow(Squares):
        def __getitem__(self, index: int) -> int:
            gate.wait()
            return index

    iterator = iter(DataLoader(Slow(2), num_workers=1, timeout=0.01))
    with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0.01 seconds$"):
        next(iterator)
    gate.set()
    iterator._timeout = 60
    assert [int(x) for x in iterator] == [0, 1]


# Threads


def test_all_threads_work_on_the_same_batch() -> None:
    together = threading.Barrier(4)

    class Meeting(Squares):
        def __getitem__(self, index: int) -> int:
            together.wait(60)
            return index

    assert [batch.tolist() for batch in DataLoader(Meeting(8), 4, num_workers=4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_more_is_made_ahead_than_was_asked_for() -> None:
    made: list[int] = []
    four = threading.Semaphore(0)

    class Counting(Squares):
        def __getitem__(self, index: int) -> int:
            made.append(index)
            four.release()
            return index

    iterator = iter(DataLoader(Counting(), 1, num_workers=1, prefetch_factor=4))
    for _ in range(4):
        four.acquire()
    assert iterator._outstanding.keys() == {0, 1, 2, 3}
    assert sorted(made) == [0, 1, 2, 3]
    next(iterator)
    four.acquire()
    assert sorted(made) == [0, 1, 2, 3, 4]
    iterator.close()


@pytest.mark.parametrize("dataset", [Squares(1000), Batched(1000), Count(1000)])
@pytest.mark.parametrize("persistent", [False, True])
def test_dropped_half_way_no_thread_is_left(dataset: Any, persistent: bool) -> None:
    loader = DataLoader(dataset, 4, num_workers=3, persistent_workers=persistent)
    for _ in loader:
        assert threads()
        break
    assert bool(threads()) is persistent
    assert len(list(loader)) == 250
    del loader
    assert threads() == []


def test_an_iterator_in_a_cycle_is_collected() -> None:
    iterator: Any = iter(DataLoader(Squares(), num_workers=2))
    next(iterator)
    iterator.itself = iterator
    del iterator
    gc.collect()
    assert threads() == []


def test_an_exception_in_the_training_loop_leaves_no_thread() -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in DataLoader(Squares(), num_workers=2):
            raise ZeroDivisionError
    gc.collect()
    assert threads() == []


def test_persistent_threads_are_the_same_in_each_epoch() -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=True)
    list(loader)
    first = sorted(thread.ident or 0 for thread in threading.enumerate())
    iterator = iter(loader)
    next(iterator)
    assert same(list(loader), list(TorchLoader(Squares(), 4))), "an epoch that is begun anew begins at the beginning"
    assert sorted(thread.ident or 0 for thread in threading.enumerate()) == first


def test_torchs_own_number_of_threads_stays() -> None:
    inside: list[int] = []

    class Asking(Squares):
        def __getitem__(self, index: int) -> int:
            inside.append(torch.get_num_threads())
            return index

    before = torch.get_num_threads()
    list(DataLoader(Asking(), num_workers=2))
    assert torch.get_num_threads() == before
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [before]
    assert set(inside) == {1}


def test_two_threads_share_an_iterator() -> None:
    iterator = iter(DataLoader(Squares(400), 1, num_workers=2))
    got: list[list[int]] = [[], []]

    def take(into: list[int]) -> None:
        into.extend(int(batch["y"]) for batch in iterator)

    consumers = [threading.Thread(target=take, args=(into,)) for into in got]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
    assert sorted(got[0] + got[1]) == [n * n for n in range(400)]


def test_pickle_takes_the_loader_and_not_the_iterator() -> None:
    loader = DataLoader(Squares(), 4, num_workers=2, persistent_workers=True)
    expected = list(loader)
    for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert same(list(other), expected)
        assert other.num_workers == 2
    with pytest.raises(NotImplementedError, match="pickle the loader"):
        pickle.dumps(iter(loader))


# Processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("persistent", [False, True])
def test_in_a_forked_child_the_old_iterator_says_so_and_a_new_one_works(persistent: bool) -> None:
    script = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from feedwater.dataloader import DataLoader
loader = DataLoader(range(40), 4, num_workers=2, persistent_workers={persistent})
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        assert "fork" in str(error), error
        assert sum(len(batch) for batch in loader) == 40
        del iterator
        sys.exit(17)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
assert sum(len(batch) for batch in iterator) == 36
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_while_waiting_ends_the_process() -> None:
    script = """
import threading
from feedwater.dataloader import DataLoader
class Stuck:
    def __len__(self): return 8
    def __getitem__(self, index):
        print("waiting", flush=True)
        threading.Event().wait(3600)
for _ in DataLoader(Stuck(), num_workers=1):
    pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("persistent", [False, True])
def test_the_interpreter_exits_with_an_iterator_half_way(persistent: bool) -> None:
    script = f"""
import torch
from feedwater.dataloader import DataLoader
class Work:
    def __len__(self): return 100000
    def __getitem__(self, index): return torch.rand(64, 64) @ torch.rand(64, 64)
loader = DataLoader(Work(), 8, num_workers=3, persistent_workers={persistent})
iterator = iter(loader)
next(iterator)
print("done", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
