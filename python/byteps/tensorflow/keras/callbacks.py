"""Callbacks for tf.keras, be it Keras 3 or (TF_USE_LEGACY_KERAS=1) tf_keras; what they do is in
byteps/_keras/callbacks.py."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from byteps._keras import callbacks as _shared

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "JoinCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_Callback: Any = tf.keras.callbacks.Callback
_ModelCheckpoint: Any = tf.keras.callbacks.ModelCheckpoint


class BroadcastGlobalVariablesCallback(_shared.BroadcastGlobalVariables, _Callback):
    __doc__ = _shared.BroadcastGlobalVariables.__doc__


class JoinCallback(_shared.Join, _Callback):
    __doc__ = _shared.Join.__doc__


class MetricAverageCallback(_shared.MetricAverage, _Callback):
    __doc__ = _shared.MetricAverage.__doc__


class LearningRateScheduleCallback(_shared.LearningRateSchedule, _Callback):
    __doc__ = _shared.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(_shared.LearningRateWarmup, _Callback):
    __doc__ = _shared.LearningRateWarmup.__doc__


class BestModelCheckpoint(_shared.BestModelCheckpoint, _ModelCheckpoint):
    __doc__ = _shared.BestModelCheckpoint.__doc__
