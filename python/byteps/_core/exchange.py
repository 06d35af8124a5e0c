"""Exchange: what ranks agree about when they exchange a tensor under one name, beside its dtype and shape, and how this
rank gives it away (src/base/spec.h is the same in the core). Each framework layer makes one for each tensor that it
gives away, and it goes to the core by one of two ways, which are all that read it:

    tensor()    a byteps_tensor: for Job.submit(), and for native code that is called with one
    packed()    the same as text: for what a compiled program is told of its exchanges (src/bridge/exchange.h)

Where the tensor's memory is (Place) is this rank's own matter: others may have theirs elsewhere.

A new attribute of a tensor is a field here, and its word in tensor() and unpacked(); CONTRIBUTING.md has the rest.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple, Sequence, Tuple

from byteps._core import abi, errors

BY_NAME = 1  # kResidualByName, kMomentumByName (src/bridge/bridge.h)
PREFIX = b"byteps."  # of the names that layers give to tensors of their users
_IS_BEHIND = 1  # in place of an address, in what is packed


class Place(NamedTuple):
    """Where the memory of a tensor is, and when the core may touch it."""

    memory: int = abi.HOST_MEMORY
    device: int = 0  # its number in this process
    stream: int = 0  # a cudaStream_t: memory is touched when what was put on it before the submission has ended


HOST = Place()


class Codec(NamedTuple):
    """What the formats of the original's compressors are to be: byteps_codec."""

    k: float = 0.0
    seed: int = 0
    flags: int = 0  # abi.CODEC_SEEDED, ...


NO_CODEC = Codec()


class Exchange(NamedTuple):
    """The first fields are those of a Reduction, in its order: Exchange(*reduction, members=...)."""

    operation: int  # abi.SUM, ...
    scale: float = 0.0  # a sum or average is multiplied by it; 0: not
    root: int = 0  # of a broadcast: whose values all get; with root_only: who gets the result
    root_only: bool = False  # nobody but the root gets it
    members: Tuple[int, ...] = ()  # ascending ranks that take part; (): all
    priority: int = 0  # a larger one goes first; equal on all ranks is best
    once: bool = False  # the name is never used again
    format: int = abi.FORMAT_PLAIN  # how its elements travel, where it is for such a tensor (CODED_WHERE_FIT)
    residual: int = 0  # of error feedback: an address, or BY_NAME in a bridge; 0: none
    codec: Codec = NO_CODEC  # of the formats that have one
    momentum: int = 0  # of Nesterov's momentum before it is coded: an address, or BY_NAME; 0: none
    momentum_mu: float = 0.0  # with momentum
    residual_ratio: float = 0.0  # the residual is multiplied by it when it is added; 0: not

    def tensor(
        self,
        name: str,
        kind: int,
        shape: Sequence[int],
        input: int = 0,
        output: int = 0,
        prefix: bytes = b"",
        place: Place = HOST,
    ) -> abi.Tensor:
        """The exchange of one tensor as the C interface takes it. `kind`: of its elements (elements.py). `shape`: the
        dimensions. `input` and `output`: addresses in `place`, 0: none. InvalidArgumentError: `name`, which `prefix`
        precedes, is none."""
        flags = abi.ONCE if self.once else 0
        if self.root_only:
            flags |= abi.ROOT_ONLY
        if self.format:
            flags |= abi.CODED_WHERE_FIT
        encoded = prefix + encoded_name(name)
        count = math.prod(shape)
        tensor = abi.Tensor(
            abi.TENSOR_BYTES, kind, encoded, input, output, count, self.operation, self.root, self.priority, flags
        )
        # Each word costs, and most are 0. One dimension says no more than the count.
        if len(shape) > 1:
            tensor.shape = (ctypes.c_uint64 * len(shape))(*shape)
            tensor.dimension_count = len(shape)
        if self.scale:
            tensor.scale = self.scale
        if self.members:
            tensor.members = (ctypes.c_uint32 * len(self.members))(*self.members)
            tensor.member_count = len(self.members)
        if self.format:
            tensor.format = self.format
        if self.residual:
            tensor.residual = self.residual
        if self.codec != NO_CODEC:
            tensor.codec = ctypes.pointer(abi.Codec(*self.codec))
        if self.momentum:
            tensor.momentum = self.momentum
        if self.momentum_mu or self.residual_ratio:
            tensor.momentum_mu, tensor.residual_ratio = self.momentum_mu, self.residual_ratio
        if place.memory != abi.HOST_MEMORY:
            tensor.memory, tensor.device, tensor.stream = place
        return tensor

    def without_memory(self) -> "Exchange":
        """For another tensor that travels likewise, as the gradient of this one: what is kept is this one's."""
        codec = self.codec._replace(flags=self.codec.flags & ~abi.CODEC_ERROR_FEEDBACK)
        return self._replace(codec=codec, residual=0, residual_ratio=0.0, momentum=0, momentum_mu=0.0)

    def packed(self, kind: int = 0) -> str:
        """tensor() without what is known when the program runs, the name, the shape and the addresses; what it points
        at follows it, the codec where there is one (then it is not NULL) and the members. In hex."""
        tensor = self.tensor("", kind, ())
        tensor.name = tensor.members = None
        tensor.element_count = 0
        behind = bytes((ctypes.c_uint32 * len(self.members))(*self.members))
        if tensor.codec:
            behind = bytes(tensor.codec.contents) + behind
            tensor.codec = ctypes.cast(_IS_BEHIND, ctypes.POINTER(abi.Codec))
        return (bytes(tensor) + behind).hex()

    @classmethod
    def unpacked(cls, packed: str) -> "Exchange":
        content = bytes.fromhex(packed)
        tensor = abi.Tensor.from_buffer_copy(content)
        behind, codec = abi.TENSOR_BYTES, NO_CODEC
        if tensor.codec:
            given = abi.Codec.from_buffer_copy(content, behind)
            behind, codec = behind + ctypes.sizeof(given), Codec(given.k, given.seed, given.flags)
        members = (ctypes.c_uint32 * tensor.member_count).from_buffer_copy(content, behind)
        return cls(
            tensor.operation,
            tensor.scale,
            tensor.root,
            bool(tensor.flags & abi.ROOT_ONLY),
            tuple(members),
            tensor.priority,
            bool(tensor.flags & abi.ONCE),
            tensor.format,
            tensor.residual or 0,
            codec,
            tensor.momentum or 0,
            tensor.momentum_mu,
            tensor.residual_ratio,
        )


def encoded_name(name: str) -> bytes:
    """The bytes by which a tensor is known. InvalidArgumentError when it is no text that can travel: C ends a name at
    NUL, and a lone surrogate has no UTF-8."""
    if not isinstance(name, str):
        raise errors.InvalidArgumentError(f"name is {name!r}: the name of a tensor is a str, not {type(name).__name__}")
    if "\0" in name:
        raise errors.InvalidArgumentError(f"name is {name!r}: it contains a NUL character, which names may not")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgumentError(f"name is {name!r}: it contains a lone surrogate, so it is no text") from None
