"""Callbacks for Keras 3; what they do is in byteps/_keras/callbacks.py."""

from __future__ import annotations

import keras

from byteps._keras import callbacks as _shared

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "JoinCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(_shared.BroadcastGlobalVariables, keras.callbacks.Callback):
    __doc__ = _shared.BroadcastGlobalVariables.__doc__


class JoinCallback(_shared.Join, keras.callbacks.Callback):
    __doc__ = _shared.Join.__doc__


class MetricAverageCallback(_shared.MetricAverage, keras.callbacks.Callback):
    __doc__ = _shared.MetricAverage.__doc__


class LearningRateScheduleCallback(_shared.LearningRateSchedule, keras.callbacks.Callback):
    __doc__ = _shared.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(_shared.LearningRateWarmup, keras.callbacks.Callback):
    __doc__ = _shared.LearningRateWarmup.__doc__


class BestModelCheckpoint(_shared.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    __doc__ = _shared.BestModelCheckpoint.__doc__
