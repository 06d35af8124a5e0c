"""The exceptions of byteps. Each class stands for what the caller can do about it (byteps_code in byteps.h)."""

from __future__ import annotations

from typing import Dict, Type

NOT_INITIALIZED = "BytePS has not been initialized; use bps.init()."


class BytePSError(RuntimeError):
    """Any failure that the core reports. `code` is the byteps_code."""

    code = -1


class InvalidArgumentError(BytePSError, ValueError):
    """The call or a setting is wrong; the message names it and the remedy."""

    code = 1


class NotInitializedError(InvalidArgumentError):
    """There is no job: init() was not called, or shutdown() was."""

    def __init__(self, message: str = NOT_INITIALIZED) -> None:
        super().__init__(message)


class TooManyPendingError(BytePSError):
    """Too many operations are under way; wait for some of them first."""

    code = 2


class TimedOutError(BytePSError, TimeoutError):
    """The time allowed is over."""

    code = 3


class DisconnectedError(BytePSError):
    """A member of the job is gone; the message names it."""

    code = 4


class UnsupportedError(BytePSError):
    """Not in this version."""

    code = 5


class SystemRefusedError(BytePSError):
    """The operating system refused something."""

    code = 6


class MismatchError(BytePSError):
    """Ranks disagree about a tensor; every rank gets this, with the tensor's name and what each rank had."""

    code = 7


class CancelledError(BytePSError):
    """Ended by leaving the job, or because another part of the job failed."""

    code = 8


_BY_CODE: Dict[int, Type[BytePSError]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        TooManyPendingError,
        TimedOutError,
        DisconnectedError,
        UnsupportedError,
        SystemRefusedError,
        MismatchError,
        CancelledError,
    )
}


def from_code(code: int, message: str) -> BytePSError:
    error = _BY_CODE.get(code, BytePSError)(message)
    error.code = code
    return error
