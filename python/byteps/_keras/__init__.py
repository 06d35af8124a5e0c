"""What byteps.keras (Keras 3) and byteps.tensorflow.keras (tf.keras, tf_keras 2) share.

exchange.py            GradientExchange: what one DistributedOptimizer was told, and the names of its gradients
optimizer.py           wrap(): a Keras 3 optimizer of the user's class that averages gradients in apply()
legacy.py              the same for tf_keras 2
torch_backend.py       how a list of gradients is averaged, per backend of Keras: one function push_pull()
tensorflow_backend.py
jax_backend.py
values.py              sums, averages, broadcasts and gathers of values outside of compiled functions, by numpy
callbacks.py           what the callbacks do, without a base class
saving.py              load_model

Nothing here imports Keras or a framework at import, but for the backend files.
"""
