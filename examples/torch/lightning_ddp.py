"""A Lightning Trainer on BytePS: one argument of its strategy. `pip install lightning`

    python examples/torch/lightning_ddp.py                      # starts two processes here, and what they need
    torchrun --nproc-per-node 2 examples/torch/lightning_ddp.py
"""

import argparse

import lightning
import torch
import torch.distributed as dist
from backend_ddp_digits import load
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, index):
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch, index):
        right = (self.model(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    train, tests = load()
    trainer = lightning.Trainer(
        accelerator="cpu" if args.device == "cpu" else "gpu",
        devices=2,
        max_epochs=20,
        strategy=DDPStrategy(process_group_backend="byteps"),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    tests_loader = DataLoader(tests, batch_size=180)
    trainer.fit(Digits(), DataLoader(train, batch_size=32, shuffle=True), tests_loader)
    if trainer.is_global_zero:
        accuracy = trainer.callback_metrics["accuracy"]
        print(f"test accuracy {accuracy:.3f} on '{dist.get_backend()}'", flush=True)


if __name__ == "__main__":
    main()
