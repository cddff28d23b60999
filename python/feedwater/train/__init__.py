"""How does a model train with PyTorch? `feedwater train RECIPE --engine torch`, or `torchrun … -m feedwater.train RECIPE`.

    batches ─▶ prepare ─▶ forward ─▶ loss ─▶ backward ─▶ accumulate ─▶ clip ─▶ AdamW ─▶ checkpoint
    (engine)   (device)   (recipe)                       (loop)

| file | question |
| --- | --- |
| `loop.py` | what happens from the first batch to the last? |
| `whisper.py`, `lm.py`, `cnn_lstm.py`, `tts.py` | what is trained? A file a recipe |
| `feed.py` | where do batches come from? |
| `recipe.py` | what does a recipe say? |
| `settings.py` | what was asked for? By the command's own parser |
| `speed.py` | which settings make it fast, and why? |
| `places.py`, `relay.py` | on which devices, and how does a batch get from one to the other? |
| `group.py`, `zero.py` | how do several processes share a model? By DDP and FSDP2; by DeepSpeed |
| `memory.py` | which batch size, and what if memory does not suffice? |
| `checkpoints.py` | how does a run survive a kill? |
| `tell.py` | what does the user see, and what is written down? |
"""
