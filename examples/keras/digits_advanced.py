"""The digits again, with what long trainings need: the rate warms up and falls in steps, rank 0 keeps the best model,
and a job that is started again goes on from there.

    bpslaunch --local --workers 2 -- python examples/keras/digits_advanced.py --checkpoint best.keras
"""

import argparse
import os

import digits
import keras

import byteps.keras as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--checkpoint", default="digits.keras", help="the file that the best model is kept in")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--warmup-epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=18, help="of each worker")
parser.add_argument("--learning-rate", type=float, default=0.05, help="of one worker")


def make_model(learning_rate):
    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
    model = digits.make_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=bps.DistributedOptimizer(optimizer), loss=loss, metrics=["accuracy"])
    return model


def main():
    args = parser.parse_args()
    bps.init()
    keras.utils.set_random_seed(bps.rank())  # other weights on each rank, until they are broadcast
    rate = args.learning_rate * bps.size()  # as many times as large as the batch
    # Rank 0 decides; others may not see its file, and get its weights in the first batch.
    goes_on = bps.broadcast(int(os.path.exists(args.checkpoint)), 0, name="goes_on")
    model = bps.load_model(args.checkpoint) if goes_on and bps.rank() == 0 else make_model(rate)

    train_x, train_y, test_x, test_y = digits.load()
    rows = len(train_x) // bps.size()
    mine = slice(bps.rank() * rows, (bps.rank() + 1) * rows)
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),
        # Before those that look at metrics or at the rate.
        bps.callbacks.MetricAverageCallback(),
        bps.callbacks.LearningRateWarmupCallback(warmup_epochs=args.warmup_epochs, initial_lr=rate, verbose=1),
        bps.callbacks.LearningRateScheduleCallback(
            multiplier=lambda epoch: 0.1 ** (epoch // 8), start_epoch=args.warmup_epochs, initial_lr=rate
        ),
    ]
    if bps.rank() == bps.leader():
        callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint, "val_accuracy", save_best_only=True))
    model.fit(
        train_x[mine],
        train_y[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=(test_x[bps.rank() :: bps.size()], test_y[bps.rank() :: bps.size()]),
        callbacks=callbacks,
        verbose=2 if bps.rank() == bps.leader() else 0,
    )
    accuracy = bps.push_pull(model.evaluate(test_x, test_y, verbose=0)[1], name="accuracy")
    if bps.rank() == bps.leader():
        print(f"{'went on, ' if goes_on else ''}test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
