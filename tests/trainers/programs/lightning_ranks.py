"""ranks.py's training with Lightning, which starts its second rank itself: no callback but its own, its progress bar.

It takes the options of ranks.py, and breaks as it does.
"""

import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from ranks import BATCH, WIDTH, break_down, options
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.args = args
        layers = (nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.layers = nn.Sequential(*layers)

    def training_step(self, rows, index):
        due = self.global_step + 1 == self.args.at and self.global_rank == self.args.rank
        if due and self.args.fault and not os.path.exists("broken"):
            break_down(self.args.fault)
        return nn.functional.mse_loss(self.layers(rows), rows.sum(1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Batches:
    """Of an epoch. It ends with a checkpoint: resumed within one, the progress bar would not tell which it is."""

    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __iter__(self):
        for _ in range(self.number):
            yield torch.randn(BATCH, 32)


def main():
    args = options().parse_args()
    last = "checkpoints/last.ckpt"
    resumes = os.path.exists(last)
    done = torch.load(last, weights_only=True)["global_step"] if resumes else 0
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=-1,
        max_steps=done + args.more if resumes else -1,
        callbacks=[
            ModelCheckpoint("checkpoints", save_last=True),
            TQDMProgressBar(),  # that of rich, where there is one, shows no step in a file
        ],
        logger=False,
    )
    trainer.fit(Model(args), Batches(args.save_every), ckpt_path=last if resumes else None)


if __name__ == "__main__":
    main()
