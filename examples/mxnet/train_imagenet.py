"""A ResNet of gluon on ImageNet or any pictures in one folder per class, with what a training of days needs: forked
loaders, a rate that warms up and falls, label smoothing, metrics of all workers, and checkpoints from which a job that
is started again goes on.

    bpslaunch --local --workers 2 -- python examples/mxnet/train_imagenet.py --data-dir imagenet

imagenet/train and imagenet/val have one folder per class. Without --data-dir: a small ResNet on scikit-learn's digits.

    python examples/mxnet/train_imagenet.py --num-epochs 6 --lr-decay-epoch 4,5
"""

import argparse
import os
import re
import tempfile

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.data.vision import transforms
from mxnet.gluon.model_zoo import vision
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.mxnet as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data-dir", help="folder with train and val, each with one folder of pictures per class")
parser.add_argument("--model", default="resnet50_v1", help="of gluon.model_zoo.vision, for --data-dir")
parser.add_argument("--num-epochs", type=int, default=90)
parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
parser.add_argument("-j", "--num-workers", type=int, default=2, help="processes of each worker that read data")
parser.add_argument("--lr", type=float, default=0.0125, help="of one worker")
parser.add_argument("--lr-mode", default="step", choices=["step", "cosine", "poly"])
parser.add_argument("--lr-decay", type=float, default=0.1, help="what the rate is multiplied by in steps")
parser.add_argument("--lr-decay-epoch", default="30,60,80", help="epochs of those steps")
parser.add_argument("--warmup-lr", type=float, default=0.0)
parser.add_argument("--warmup-epochs", type=int, default=1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=1e-4, help="weight decay")
parser.add_argument("--no-wd", action="store_true", help="no weight decay of biases and normalizations")
parser.add_argument("--label-smoothing", type=float, default=0.0)
parser.add_argument("--save-dir", help="folder for checkpoints; a job that finds one there goes on from it")
parser.add_argument("--save-frequency", type=int, default=1, help="epochs between checkpoints")
parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel in 16 bits")


class Share(gluon.data.Sampler):
    """One rank's share of the data, each epoch another one of the same length."""

    def __init__(self, count, shuffle):
        self.count, self.shuffle = count, shuffle
        self.random = np.random.RandomState(0)  # the same on all ranks, which take different parts of one order

    def __len__(self):
        return self.count // bps.size() if self.shuffle else len(range(bps.rank(), self.count, bps.size()))

    def __iter__(self):
        order = self.random.permutation(self.count) if self.shuffle else np.arange(self.count)
        return iter(order[bps.rank() :: bps.size()][: len(self)].tolist())


def load(args):
    """Loaders of training and validation data, and the network."""
    if args.data_dir:
        normal = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        varied = [transforms.RandomResizedCrop(224), transforms.RandomFlipLeftRight(), transforms.ToTensor(), normal]
        plain = [transforms.Resize(256, keep_ratio=True), transforms.CenterCrop(224), transforms.ToTensor(), normal]
        folders = [gluon.data.vision.ImageFolderDataset(os.path.join(args.data_dir, p)) for p in ("train", "val")]
        net = vision.get_model(args.model, classes=len(folders[0].synsets))
        sets = [
            folder.transform_first(transforms.Compose(steps), lazy=True)
            for folder, steps in zip(folders, (varied, plain))
        ]
    else:
        images, labels = load_digits(return_X_y=True)
        images, labels = images.reshape(-1, 1, 8, 8).astype("float32") / 16, labels.astype("float32")
        parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
        sets = [gluon.data.ArrayDataset(*parts[0::2]), gluon.data.ArrayDataset(*parts[1::2])]
        net = vision.ResNetV1(vision.BasicBlockV1, [1, 1, 1], [16, 16, 32, 64], classes=10, thumbnail=True)
    train, tested = (
        gluon.data.DataLoader(
            data,
            args.batch_size,
            sampler=Share(len(data), shuffle),
            last_batch="discard" if shuffle else "keep",
            num_workers=args.num_workers,
        )
        for data, shuffle in zip(sets, (True, False))
    )
    return train, tested, net


def batches(loader):
    """Images and labels, which come in the memory that forked processes share, where networks run."""
    for images, labels in loader:
        yield images.as_in_context(mx.cpu()), labels.as_in_context(mx.cpu())


def make_trainer(args, net, steps_per_epoch):
    rate = args.lr * bps.size()  # as many times as large as the batch
    warmup = dict(warmup_steps=args.warmup_epochs * steps_per_epoch, warmup_begin_lr=args.warmup_lr)
    if args.lr_mode == "step":
        steps = [int(epoch) * steps_per_epoch for epoch in args.lr_decay_epoch.split(",")]
        schedule = mx.lr_scheduler.MultiFactorScheduler(steps, args.lr_decay, base_lr=rate, **warmup)
    else:
        kind = {"cosine": mx.lr_scheduler.CosineScheduler, "poly": mx.lr_scheduler.PolyScheduler}[args.lr_mode]
        schedule = kind(args.num_epochs * steps_per_epoch, base_lr=rate, **warmup)
    if args.no_wd:
        for parameter in net.collect_params(".*beta|.*gamma|.*bias").values():
            parameter.wd_mult = 0.0
    options = {"learning_rate": rate, "lr_scheduler": schedule, "momentum": args.momentum, "wd": args.wd}
    compression = {"fp16": args.fp16_pushpull}
    return bps.DistributedTrainer(net.collect_params(), "sgd", options, compression_params=compression)


def save(args, epoch, net, trainer):
    """By rank 0: the parameters, and what the optimizer remembers. The last file is renamed when it is whole."""
    path = os.path.join(args.save_dir, f"epoch-{epoch:04d}")
    os.makedirs(args.save_dir, exist_ok=True)
    net.save_parameters(path + ".params")
    trainer.save_states(path + ".new")
    os.replace(path + ".new", path + ".states")


def go_on(args, net, trainer):
    """The epochs that the newest checkpoint of rank 0 has had, 0 without one. All ranks get what is in its files, which
    only rank 0 needs to see."""
    files = None
    if bps.rank() == bps.leader() and args.save_dir and os.path.isdir(args.save_dir):
        found = sorted(re.findall(r"epoch-(\d+)\.states", " ".join(os.listdir(args.save_dir))))
        if found:
            path = os.path.join(args.save_dir, f"epoch-{found[-1]}")
            files = [int(found[-1]), *(open(path + end, "rb").read() for end in (".params", ".states"))]
    files = bps.broadcast_object(files, root_rank=0)
    if files is None:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for name, content in zip(("params", "states"), files[1:]):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        net.load_parameters(os.path.join(folder, "params"))
        trainer.load_states(os.path.join(folder, "states"))
    return files[0]


def average(metric):
    """Of all that was counted by all workers."""
    right, counted = bps.allreduce(mx.nd.array([metric.sum_metric, metric.num_inst]), op=bps.Sum).asnumpy()
    return right / counted


def evaluate(net, loader):
    first, fifth = mx.metric.Accuracy(), None
    for images, labels in batches(loader):
        outputs = net(images)
        fifth = fifth or mx.metric.TopKAccuracy(min(5, outputs.shape[1]))
        first.update(labels, outputs)
        fifth.update(labels, outputs)
    return average(first), average(fifth)


def main():
    args = parser.parse_args()
    bps.init()
    mx.random.seed(bps.rank())  # other values on each rank, until the trainer gives all those of rank 0
    train, tested, net = load(args)
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    net(next(batches(tested))[0])  # shapes are known from here on
    net.hybridize()
    trainer = make_trainer(args, net, len(train))
    begin = go_on(args, net, trainer)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)

    for epoch in range(begin, args.num_epochs):
        counted = mx.metric.Accuracy()
        for images, labels in batches(train):
            with autograd.record():
                outputs = net(images)
                classes = outputs.shape[1]
                rest = args.label_smoothing / classes
                wanted = mx.nd.one_hot(labels, classes, 1 - args.label_smoothing + rest, rest)
                loss = loss_of(outputs, wanted)
            loss.backward()
            trainer.step(len(labels))
            counted.update(labels, outputs)
        learnt, (first, fifth) = average(counted), evaluate(net, tested)
        if bps.rank() == bps.leader():
            told = f"training {learnt:.4f}, top-1 {first:.4f}, top-5 {fifth:.4f}"
            print(f"epoch {epoch}: rate {trainer.learning_rate:.4g}, {told}", flush=True)
            if args.save_dir and (epoch + 1) % args.save_frequency == 0:
                save(args, epoch + 1, net, trainer)
    first, fifth = evaluate(net, tested)
    if bps.rank() == bps.leader():
        print(f"from epoch {begin} to {args.num_epochs}: accuracy={first:.4f} top5={fifth:.4f}", flush=True)


if __name__ == "__main__":
    main()
