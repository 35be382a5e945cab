"""Hugging Face's Trainer with a tiny model. FOLDER STEPS EVALUATE_AT BATCHES SIGNAL_AT; 0: never.

A last word `plain`: without Sentinel's callback. `slow`: also with data that are prepared first, and a save where it
evaluates, as slow as the evaluation.

Rank 0 takes a line from the FIFO `pace`, in the current directory, before each batch of an evaluation, and each
piece of what is slow. At the end it prints a number that is another one for any other weights.
"""

import functools
import hashlib
import os
import signal
import sys

import torch
from tqdm import tqdm
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from sentinel.integrations.transformers import SentinelCallback, newest_checkpoint

FOLDER = sys.argv[1]
STEPS, EVALUATE_AT, BATCHES, SIGNAL_AT = (int(word) for word in sys.argv[2:6])
SLOW = sys.argv[6:] == ["slow"]
PLAIN = SLOW or sys.argv[6:] == ["plain"]
pace = functools.cache(functools.partial(open, "pace"))  # waits for the test


class Texts(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        words = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": index % 2}


class Paced(Texts):
    def __getitem__(self, index):
        if os.environ.get("RANK") == "0":
            pace().readline()
        return super().__getitem__(index)


class Disturbance(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == SIGNAL_AT and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGUSR1)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = state.global_step == EVALUATE_AT


def slowly(what):
    if os.environ.get("RANK") == "0":
        for _ in tqdm(range(BATCHES), desc=what):
            pace().readline()


class SavesSlowly(Trainer):
    def _save_checkpoint(self, *args, **kwargs):
        slowly("Writing shards")
        super()._save_checkpoint(*args, **kwargs)


torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
)
args = TrainingArguments(
    output_dir=FOLDER,
    max_steps=STEPS,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=1,
    lr_scheduler_type="constant",  # whatever the steps to come
    save_strategy="steps" if SLOW else "no",
    save_steps=EVALUATE_AT,
    logging_steps=10,
    use_cpu=True,
    report_to=[],
)
if SLOW:
    slowly("Map")
trainer = (SavesSlowly if SLOW else Trainer)(
    model,
    args,
    train_dataset=Texts(1_000_000),  # no training comes to the end of an epoch
    eval_dataset=Paced(2 * BATCHES),  # of two ranks, each of which takes every other one
    callbacks=[Disturbance()] if PLAIN else [SentinelCallback(), Disturbance()],
)
trainer.train(resume_from_checkpoint=newest_checkpoint(FOLDER))
if trainer.is_world_process_zero():
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    print("\nweights", hashlib.sha256(weights).hexdigest(), flush=True)
sys.stdout.flush()
os._exit(0)  # as ranks.py, for the same reason
