"""load_model: Keras loads, then the optimizer becomes a distributed one.

A model is saved with its optimizer's plain class (optimizer.py says how), so there is nothing special in the file.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence

from byteps._keras.exchange import GradientExchange


def load_model(
    keras: Any,
    convert: Callable[[Any, GradientExchange], None],
    filepath: Any,
    custom_optimizers: Optional[Sequence[type]],
    custom_objects: Optional[Dict[str, Any]],
    compression: Any,
    options: Dict[str, Any],
) -> Any:
    """The model that `keras` loads, its optimizer made a distributed one by `convert`. Its weights are those of the
    file on each rank that reads it: broadcast them if ranks may read different files."""
    options = dict(options)
    for_keras = {key: options.pop(key) for key in ("compile", "safe_mode") if key in options}
    passes = options.pop("backward_passes_per_step", 1)
    average_passes = options.pop("average_aggregated_gradients", False) or passes == 1
    exchange = GradientExchange(
        options.pop("op", "Average"),
        compression,
        options.pop("gradient_predivide_factor", 1.0),
        options.pop("sparse_as_dense", False),
        options.pop("process_set", None),
        options.pop("name", None),
        passes,
        average_passes,
    )
    if options:
        raise ValueError(f"load_model: unknown option {', '.join(sorted(options))}")
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects or None, **for_keras)
    if getattr(model, "optimizer", None) is not None:
        saved = getattr(model.optimizer, "gradient_accumulation_steps", None) or 1
        if passes not in (1, saved) and hasattr(model.optimizer, "gradient_accumulation_steps"):
            raise ValueError(f"backward_passes_per_step is {passes}, but the model was saved with {saved}")
        convert(model.optimizer, exchange)
    return model
