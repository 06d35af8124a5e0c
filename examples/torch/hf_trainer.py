"""The Trainer of Hugging Face transformers on BytePS: make the process group first, as for Accelerate, on which it is
built. `pip install transformers accelerate`

    torchrun --nproc-per-node 2 examples/torch/hf_trainer.py
    bpslaunch --local --workers 2 -- python examples/torch/hf_trainer.py
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from backend_ddp_digits import load
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images, labels):
        logits = self.layers(images)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def collate(samples):
    return {"images": torch.stack([image for image, _ in samples]), "labels": torch.stack([y for _, y in samples])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    dist.init_process_group("byteps")
    train, tests = load()
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        num_train_epochs=20,
        learning_rate=0.01,
        use_cpu=args.device == "cpu",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(
        Digits(),
        arguments,
        data_collator=collate,
        train_dataset=train,
        eval_dataset=tests,
        compute_metrics=lambda seen: {"accuracy": float((seen.predictions.argmax(1) == seen.label_ids).mean())},
    )
    trainer.train()
    reached = trainer.evaluate()["eval_accuracy"]
    if trainer.is_world_process_zero():
        print(f"test accuracy {reached:.3f} on '{dist.get_backend()}'", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
