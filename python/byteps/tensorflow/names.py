"""Names of exchanges. What belongs together has the same name on all ranks, also when one of them has traced a function
once more, say for its smaller last batch.

In a graph the tensors of one run are under way at the same time, so two of them may not have one name: names are made
unique within their graph. In eager code one exchange ends before the next begins, so a name may come again.
"""

from __future__ import annotations

from typing import Any, Hashable, List, Optional, Sequence, Tuple

import tensorflow as tf

from byteps._core import session
from byteps._core.exchange import encoded_name
from byteps._core.names import plain_path
from byteps._core.process_sets import scoped


def given(name: str, scope: str = "") -> str:
    """A name that the user gave. ValueError when it is none."""
    encoded_name(name)
    return scope + name


def automatic(kind: str, scope: str = "") -> str:
    """For exchanges that are numbered by run (Exchange.once): in eager code by kind alone, so that they must be
    called in the same order on all ranks; in a graph by the place in it."""
    base = f"{scope}{kind}.noname"
    if tf.executing_eagerly():
        return base
    graph = tf.compat.v1.get_default_graph()
    return f"{scope}{getattr(graph, 'name', 'graph')}/{graph.unique_name(base)}"


def lasting(name: str) -> str:
    """`name`, unique within the graph."""
    if tf.executing_eagerly():
        return name
    return tf.compat.v1.get_default_graph().unique_name(name)


def without_scope(name: str) -> str:
    """`name`, unique within the graph, whatever scope this is in: Keras numbers optimizers in its scopes, and a rank
    may have made more of them than others."""
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    with graph.name_scope(None):
        return graph.unique_name(name)


def of_variables(prefix: str, variables: Sequence[Any], members: Tuple[int, ...] = ()) -> List[str]:
    """A name for each variable (or other source of a gradient): its place in the list, its layer and its own name,
    without the numbers that Keras gives to layers, about which ranks that made other models before do not agree. Two
    variables of one such name (those of two models) are told apart by the order in which they are met, which must be
    the same on all members."""
    current = session.current()
    result = []
    for index, variable in enumerate(variables):
        identity, name = _identity(variable)
        if identity is None:
            result.append(f"{prefix}.source.{index}")
        else:
            result.append(current.lasting_name(scoped(f"{prefix}.{index}.{name}", members), identity))
    return [lasting(name) for name in result]


def _identity(variable: Any) -> "tuple[Optional[Hashable], str]":
    """What tells a variable from all others of this process, and its name."""
    inner = getattr(variable, "value", None)  # a Keras 3 variable holds one of TensorFlow's
    if isinstance(inner, tf.Variable):
        return _identity(inner)[0], plain_path(variable)
    unique = getattr(variable, "_unique_id", None)
    if isinstance(variable, tf.Variable) and unique is not None:
        return ("variable", unique), plain_path(variable)
    return None, ""
