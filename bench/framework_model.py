"""What every framework trains in framework_worker.py, and the small tensors it sums."""

from __future__ import annotations

import numpy as np

LAYERS = (64, 1024, 1024, 1024, 10)
BATCH = 512
SMALL_COUNT, SMALL_ELEMENTS = 160, 1024


def digits(random):
    """Batches of scikit-learn's digits, without end: float32 in 0..1, int32 labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    while True:
        chosen = random.integers(0, len(images), BATCH)
        yield images[chosen], labels[chosen]


def first_weights():
    random = np.random.default_rng(1)
    return [
        (random.standard_normal((wide, narrow), np.float32) / np.float32(np.sqrt(wide)), np.zeros(narrow, np.float32))
        for wide, narrow in zip(LAYERS, LAYERS[1:])
    ]
