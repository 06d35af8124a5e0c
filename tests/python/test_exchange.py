"""What all layers say of a tensor, without a network: as the C interface takes it, and packed for compiled programs."""

from __future__ import annotations

import ctypes

import pytest

from byteps._core import abi, elements, errors
from byteps._core.exchange import BY_NAME, Codec, Exchange
from byteps._core.reduction import Sum, resolve

CODEC = Codec(0.25, 2**63 + 7, abi.CODEC_SEEDED | abi.CODEC_ERROR_FEEDBACK)
EVERYTHING = Exchange(
    abi.SUM, 0.5, 3, True, (0, 2, 3), -7, True, abi.FORMAT_RANDOMK, BY_NAME, CODEC, BY_NAME, 0.9, 2.0
)


def test_each_field_has_its_place_in_a_tensor():
    tensor = EVERYTHING.tensor("layer.1", abi.FLOAT32, (2, 3), 4096, 8192)
    assert tensor.struct_bytes == ctypes.sizeof(abi.Tensor)
    assert (tensor.name, tensor.dtype, tensor.input, tensor.output) == (b"layer.1", abi.FLOAT32, 4096, 8192)
    assert (tensor.operation, tensor.scale, tensor.root, tensor.priority) == (abi.SUM, 0.5, 3, -7)
    assert tensor.flags == abi.ONCE | abi.ROOT_ONLY | abi.CODED_WHERE_FIT and tensor.format == abi.FORMAT_RANDOMK
    codec = tensor.codec.contents
    assert (codec.k, codec.seed, codec.flags, codec.reserved) == (0.25, 2**63 + 7, 17, 0)
    assert (tensor.residual, tensor.momentum, tensor.momentum_mu, tensor.residual_ratio) == (1, 1, 0.9, 2.0)
    assert tensor.members[: tensor.member_count] == [0, 2, 3]
    assert tensor.shape[: tensor.dimension_count] == [2, 3] and tensor.element_count == 6
    assert not tensor.queue and not tensor.tag


def test_what_is_not_said_is_zero():
    tensor = Exchange(abi.AVERAGE).tensor("scalar", abi.FLOAT64, ())
    assert tensor.element_count == 1 and tensor.dimension_count == 0 and not tensor.shape
    assert not tensor.members and tensor.member_count == 0 and tensor.scale == 0.0 and tensor.flags == 0


@pytest.mark.parametrize("what", [EVERYTHING, Exchange(abi.AVERAGE), Exchange(abi.BROADCAST, root=1, members=(1, 4))])
def test_what_was_packed_is_unpacked(what):
    packed = what.packed(abi.BFLOAT16)
    assert packed.isalnum() and Exchange.unpacked(packed) == what
    tensor = abi.Tensor.from_buffer_copy(bytes.fromhex(packed))
    assert tensor.dtype == abi.BFLOAT16
    assert not any((tensor.name, tensor.input, tensor.output, tensor.shape, tensor.members, tensor.element_count))


def test_what_is_kept_of_a_tensor_is_not_kept_of_another_that_travels_likewise():
    bare = EVERYTHING.without_memory()
    assert (bare.residual, bare.momentum, bare.momentum_mu, bare.residual_ratio) == (0, 0, 0, 0)
    assert bare.codec == CODEC._replace(flags=abi.CODEC_SEEDED) and bare.format == EVERYTHING.format


def test_the_same_is_packed_each_time():
    """Programs are compiled once for equal attributes: no address is among them."""
    again = Exchange(*(Codec(*each) if isinstance(each, Codec) else each for each in EVERYTHING))
    assert again.packed() == EVERYTHING.packed()


def test_every_field_is_packed():
    """One that tensor() or unpacked() forgets would be lost on the way to compiled programs."""
    plain = Exchange(abi.SUM)
    for field, value in EVERYTHING._asdict().items():
        assert value != getattr(plain, field) or field == "operation"
        other = plain._replace(**{field: abi.MAX if field == "operation" else value})
        assert other != plain and Exchange.unpacked(other.packed()) == other, field


def test_a_reduction_is_how_an_exchange_begins():
    assert Exchange(*resolve(Sum, prescale_factor=3), members=(1, 2)) == Exchange(abi.SUM, 3.0, members=(1, 2))


@pytest.mark.parametrize("name, why", [("a\0b", "NUL"), ("\udc80", "lone surrogate"), (b"x", "not bytes")])
def test_a_name_that_cannot_travel_is_refused(name, why):
    with pytest.raises(errors.InvalidArgumentError, match=why):
        Exchange(abi.SUM).tensor(name, abi.FLOAT32, (1,))


def test_what_has_no_average_or_no_order_is_refused():
    with pytest.raises(ValueError, match="the average of a bool tensor is not defined; its sum is the logical or"):
        elements.of_name("bool", abi.AVERAGE, "tensor")
    assert elements.of_name("bool", abi.SUM) == elements.of_name("bool", abi.BROADCAST) == (abi.BOOL, 1)
    with pytest.raises(ValueError, match="Tensor type torch.complex64 is not supported here.*no minimum"):
        elements.of_name("complex64", abi.MIN, prefix="torch.")
    assert elements.of_name("complex64", abi.AVERAGE) == (elements.standing_for("complex64", abi.FLOAT32), 2)
    with pytest.raises(ValueError, match="Tensor type float8_e5m2 is not supported. These are: float32"):
        elements.of_name("float8_e5m2", abi.SUM)
    assert elements.of_name("float8_e5m2", abi.BROADCAST) == (elements.standing_for("float8_e5m2", abi.UINT8), 0)
