"""ResNet-50 on ImageNet, or on any pictures in one folder per class, with what a training of days needs: the rate warms
up and falls in steps, rank 0 writes a checkpoint each epoch and a job that is started again goes on with the next
epoch, and metrics are those of all workers.

    KERAS_BACKEND=jax bpslaunch --local --workers 2 -- \\
        python examples/keras/imagenet_resnet50.py --train-dir imagenet/train --val-dir imagenet/val

Without folders: a small ResNet on scikit-learn's handwritten digits.

    KERAS_BACKEND=torch python examples/keras/imagenet_resnet50.py --epochs 10 --lr-decay-epochs 6 8
"""

import argparse
import os

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.keras as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--train-dir", help="a folder with one folder of pictures per class")
parser.add_argument("--val-dir", help="the same for validation, with the same classes")
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.keras", help="checkpoint files, by epoch")
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
parser.add_argument("--base-lr", type=float, default=0.0125, help="of one worker")
parser.add_argument("--warmup-epochs", type=int, default=5)
parser.add_argument("--lr-decay-epochs", type=int, nargs="*", default=[30, 60, 80], help="the rate falls to a tenth")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
parser.add_argument("--batches-per-pushpull", type=int, default=1, help="batches of a worker between two steps")
parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel in 16 bits")
parser.add_argument("--loaders", type=int, default=4, help="threads that read pictures")
PIXELS = 224


class Share(keras.utils.PyDataset):
    """Batches of one rank's share of the pictures; every rank has as many. Each epoch has another order."""

    def __init__(self, count, batch_size, shuffle, **options):
        super().__init__(**options)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.count = count
        self.random = np.random.RandomState(0)  # the same on all ranks, which take different parts of one order
        self.on_epoch_end()

    def on_epoch_end(self):
        order = self.random.permutation(self.count) if self.shuffle else np.arange(self.count)
        self.mine = order[: self.count // bps.size() * bps.size()][bps.rank() :: bps.size()]

    def __len__(self):
        return max(1, len(self.mine) // self.batch_size)

    def __getitem__(self, index):
        return self.read(self.mine[index * self.batch_size : (index + 1) * self.batch_size])


class Digits(Share):
    def __init__(self, images, labels, *args):
        self.images, self.labels = images, labels
        super().__init__(len(labels), *args)

    def read(self, chosen):
        return self.images[chosen], self.labels[chosen]


class Folders(Share):
    def __init__(self, folder, *args, **options):
        self.classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self.files = [
            (entry.path, label)
            for label, name in enumerate(self.classes)
            for entry in sorted(os.scandir(os.path.join(folder, name)), key=lambda entry: entry.name)
        ]
        self.flips = np.random.RandomState(bps.rank())
        super().__init__(len(self.files), *args, **options)

    def read(self, chosen):
        pictures = [self.picture(self.files[index][0]) for index in chosen]
        return np.stack(pictures), np.array([self.files[index][1] for index in chosen])

    def picture(self, path):
        size = (PIXELS, PIXELS)
        pixels = keras.utils.img_to_array(keras.utils.load_img(path, target_size=size, keep_aspect_ratio=True))
        pixels = keras.applications.resnet50.preprocess_input(pixels)
        return pixels[:, ::-1] if self.shuffle and self.flips.rand() < 0.5 else pixels


def load(args):
    """Training and validation data, the shape of a picture and the number of classes."""
    if args.train_dir:
        train = Folders(args.train_dir, args.batch_size, True, workers=args.loaders)
        tested = Folders(args.val_dir or args.train_dir, args.batch_size, False, workers=args.loaders)
        return train, tested, (PIXELS, PIXELS, 3), len(train.classes)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    train, tested = Digits(*parts[0::2], args.batch_size, True), Digits(*parts[1::2], args.batch_size, False)
    return train, tested, (8, 8, 1), 10


def small_resnet(shape, classes):
    """Three blocks for pictures of a few pixels."""

    def convolution(x, filters, stride=1):
        x = keras.layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        return keras.layers.BatchNormalization(momentum=0.9)(x)

    inputs = keras.layers.Input(shape)
    x = keras.layers.ReLU()(convolution(inputs, 16))
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        beside = x if stride == 1 else keras.layers.Conv2D(filters, 1, stride)(x)
        x = convolution(keras.layers.ReLU()(convolution(x, filters, stride)), filters)
        x = keras.layers.ReLU()(keras.layers.Add()([x, beside]))
    outputs = keras.layers.Dense(classes, activation="softmax")(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


def make_model(args, rate, shape, classes):
    if args.train_dir:
        model = keras.applications.ResNet50(weights=None, input_shape=shape, classes=classes)
    else:
        model = small_resnet(shape, classes)
    optimizer = keras.optimizers.SGD(rate, momentum=args.momentum, weight_decay=args.wd)
    model.compile(
        optimizer=bps.DistributedOptimizer(optimizer, **of_optimizer(args)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5")],
    )
    return model


def of_optimizer(args):
    """The options of DistributedOptimizer."""
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    return dict(
        compression=compression,
        backward_passes_per_step=args.batches_per_pushpull,
        average_aggregated_gradients=True,
    )


def last_epoch(args):
    """The newest that rank 0 has a checkpoint of, or 0."""
    existing = [e for e in range(1, args.epochs + 1) if os.path.exists(args.checkpoint_format.format(epoch=e))]
    return int(bps.broadcast(max(existing, default=0), 0, name="last_epoch"))


def main():
    args = parser.parse_args()
    bps.init()
    keras.utils.set_random_seed(bps.rank())  # other weights on each rank, until they are broadcast
    rate = args.base_lr * bps.size() * args.batches_per_pushpull
    train, tested, shape, classes = load(args)
    begin = last_epoch(args)
    if begin and bps.rank() == 0:  # others may not see its files, and get weights and velocities in the first batch
        model = bps.load_model(args.checkpoint_format.format(epoch=begin), **of_optimizer(args))
    else:
        model = make_model(args, rate, shape, classes)
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),
        bps.callbacks.MetricAverageCallback(),
        bps.callbacks.LearningRateWarmupCallback(warmup_epochs=args.warmup_epochs, initial_lr=rate, verbose=1),
        bps.callbacks.LearningRateScheduleCallback(
            multiplier=lambda epoch: 0.1 ** sum(epoch >= decay for decay in args.lr_decay_epochs),
            start_epoch=args.warmup_epochs,
            initial_lr=rate,
        ),
    ]
    if bps.rank() == bps.leader():
        callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint_format))
    verbose = 2 if bps.rank() == bps.leader() else 0
    model.fit(
        train, epochs=args.epochs, initial_epoch=begin, validation_data=tested, callbacks=callbacks, verbose=verbose
    )
    loss, accuracy, top5 = bps.allreduce(model.evaluate(tested, verbose=0), name="evaluation")
    if bps.rank() == bps.leader():
        result = f"loss={loss:.4f} accuracy={accuracy:.4f} top5={top5:.4f}"
        print(f"from epoch {begin} to {args.epochs}: {result}", flush=True)


if __name__ == "__main__":
    main()
