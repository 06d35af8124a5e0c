"""byteps.keras in a worker that has no TensorFlow, as on an installation for Keras's torch or jax backend. (Keras
imports it on every backend if it is there, which takes seconds.)"""

import sys

sys.modules["tensorflow"] = None

from byteps.keras import init  # noqa: F401
