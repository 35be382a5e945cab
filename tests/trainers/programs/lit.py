"""Lightning with a tiny model on two ranks of its own making. Arguments, `pace` and last line are those of hf.py.

A last word `plain` or `rich`: that bar, without Sentinel's callback, and epochs of 30 batches.
"""

import functools
import hashlib
import os
import signal
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar

from sentinel.integrations.lightning import SentinelCallback

FOLDER = sys.argv[1]
STEPS, EVALUATE_AT, BATCHES, SIGNAL_AT = (int(word) for word in sys.argv[2:6])
BARS = {"plain": TQDMProgressBar, "rich": RichProgressBar}
BAR = BARS[sys.argv[6]] if sys.argv[6:] else None
pace = functools.cache(functools.partial(open, "pace"))  # waits for the test


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        if self.global_step == 100 and self.global_rank == 0:
            open("100 steps", "w").close()
        if self.global_step + 1 == SIGNAL_AT and self.global_rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        if self.global_rank == 0:
            pace().readline()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Batches:
    """Keeps its place, for without that Lightning goes on with the first batches of the epoch again."""

    def __init__(self, size, rank=0):
        self.size, self.rank, self.at = size, rank, 0

    def __len__(self):
        return self.size

    def __iter__(self):
        if self.at == self.size:  # whoever took the last one did not ask for another
            self.at = 0
        while self.at < self.size:
            self.at += 1
            yield torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * self.at + self.rank))

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def main():
    torch.manual_seed(0)
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        callbacks=[
            ModelCheckpoint(dirpath=FOLDER, save_last=True),
            BAR() if BAR else SentinelCallback(),
        ],
        logger=False,
        num_sanity_val_steps=0,
        val_check_interval=EVALUATE_AT or None,
        limit_val_batches=BATCHES,
        check_val_every_n_epoch=1,
    )
    # No training that is resumed comes to the end of an epoch.
    training, validation = Batches(30 if BAR else 1_000_000, trainer.global_rank), Batches(BATCHES)
    trainer.fit(model, training, validation if EVALUATE_AT else None, ckpt_path="last")
    if trainer.is_global_zero:
        weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        print("\nweights", hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
