"""How is a PyTorch script observed without changing it?

`feedwater profile -- python train.py` puts this folder on `PYTHONPATH`. Python then runs `sitecustomize.py` before the
script, which starts the observer. `with feedwater.profile():` does the same from within.

* `observer.py`  when a run begins to be observed, and when it is over
* `hooks.py`     where it hooks into torch
* `run.py`       what each step of the training loop took
* `steps.py`     a step while it goes on, and whose it is
* `batches.py`   what making a batch took, here or in a worker process
* `stacks.py`    what the time went into, by looking at stacks now and then
* `record.py`    the record: clock, lines, file

Standard library only, Python 3.10 or newer: it has to work in any environment that has torch.
"""
