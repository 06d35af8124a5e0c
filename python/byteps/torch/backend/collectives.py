"""The collectives of a group, as torch calls them: lists of exchanges.

Every member makes the same calls in the same order, as torch demands. Bytes per member, for n members and a tensor of
B bytes each: all_reduce B out and B in; broadcast B out of the root, B in elsewhere; all_gather B out, (n-1) B in;
reduce_scatter of n x B: n B out, B in; all_to_all, gather, scatter, send: each tensor once out and once in.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any, List, Optional, Sequence, Tuple

import torch

from byteps._core import abi
from byteps._core.reduction import Reduction
from byteps.torch.backend import exchange
from byteps.torch.backend.exchange import Landings, Members, Piece, readable
from byteps.torch.backend.work import Work
from byteps.torch.tensors import elements_of

_NAMES = {
    "SUM": abi.SUM,
    "AVG": abi.AVERAGE,
    "MIN": abi.MIN,
    "MAX": abi.MAX,
    "PRODUCT": abi.PRODUCT,
    "PREMUL_SUM": abi.SUM,
}
_LOGICAL = {"BOR": abi.MAX, "BAND": abi.MIN}  # of bool


def reduction_of(options: Any, dtype: torch.dtype) -> Reduction:
    """What torch's ReduceOp means, or ValueError with the remedy."""
    op = getattr(options, "reduceOp", options)
    name, operation = _operation_of(getattr(op, "op", op), dtype)
    if name != "PREMUL_SUM":
        return Reduction(operation, 0.0)
    factor = op.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        raise ValueError("ReduceOp.PREMUL_SUM takes a number here: multiply by the tensor before the collective")
    return Reduction(operation, float(factor))


@functools.cache
def _operation_of(kind: Any, dtype: torch.dtype) -> Tuple[str, int]:
    """Name and abi's number of torch's operation; to look at it takes longer than all else here."""
    name = str(kind).rsplit(".", 1)[-1].upper()
    if name in _LOGICAL:
        if dtype != torch.bool:
            raise ValueError(
                f"ReduceOp.{name} of {dtype} is not supported by the backend 'byteps', only of torch.bool: "
                "gather the tensors and combine them, or use a group of the backend 'gloo' for this one"
            )
        return name, _LOGICAL[name]
    if name not in _NAMES:
        raise ValueError(
            f"ReduceOp.{name} is not supported by the backend 'byteps': it has SUM, AVG, MIN, MAX, PRODUCT, "
            "and BAND and BOR of bool"
        )
    elements_of(dtype, _NAMES[name])  # says why when it is not defined
    return name, _NAMES[name]


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, which is all that sums and averages need."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Collectives:
    """Mixed into the group, which has `members` and `_launch`."""

    members: Members

    def _launch(
        self,
        what: str,
        exchanges: Sequence[Piece],
        landings: Landings,
        result: Any,
        opts: Any,
        timeout: Optional[timedelta] = None,
    ) -> Work:
        raise NotImplementedError

    # ---- reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        tensors = _list(tensors)
        landings, exchanges = Landings(), []
        for tensor in tensors:
            _check_dense("all_reduce", tensor)
            meaning = reduction_of(opts if opts is not None else "SUM", tensor.dtype)
            memory = landings.place(_real(tensor), with_values=True)
            exchanges.append(exchange.reduction(self.members, memory, meaning))
        return self._launch("all_reduce", exchanges, landings, tensors, opts, timeout)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any, op: Any = None, timeout: Any = None) -> Work:
        tensors, root = _list(tensors), _root(opts)
        landings, exchanges = Landings(), []
        for tensor in tensors:
            _check_dense("reduce", tensor)
            meaning = reduction_of(op if op is not None else opts, tensor.dtype)
            real = _real(tensor)
            source = landings.place(real, with_values=True) if self.members.rank == root else readable(real)
            exchanges.append(exchange.reduction_to(self.members, root, source, source, meaning))
        return self._launch("reduce", exchanges, landings, tensors, opts, timeout)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """outputs[i] of rank r: inputs[i][r] reduced over all; their shapes may differ from rank to rank."""
        pairs = [(output, list(parts)) for output, parts in zip(_list(outputs), _lists(inputs))]
        return self._reduce_scatter("reduce_scatter", pairs, opts, timeout)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._reduce_scatter_single([output], [input], opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._reduce_scatter_single([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._reduce_scatter_single(outputs, inputs, opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._reduce_scatter_single(outputs, inputs, opts)

    def _reduce_scatter_single(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        pairs = []
        for output, tensor in zip(outputs, inputs):
            _check_dense("reduce_scatter_tensor", tensor)
            if tensor.numel() != output.numel() * self.members.size:
                raise ValueError(
                    f"reduce_scatter_tensor: the input has {tensor.numel()} elements, which must be those of the "
                    f"output, {output.numel()}, times the {self.members.size} members of the group"
                )
            pairs.append((output, list(readable(tensor).view(self.members.size, *output.shape).unbind(0))))
        return self._reduce_scatter("reduce_scatter_tensor", pairs, opts)

    def _reduce_scatter(
        self, what: str, pairs: List[Tuple[torch.Tensor, List[torch.Tensor]]], opts: Any, timeout: Any = None
    ) -> Work:
        landings, exchanges = Landings(), []
        for output, parts in pairs:
            _check_dense(what, output)
            self._check_count(what, "input", parts)
            meaning = reduction_of(opts if opts is not None else "SUM", output.dtype)
            memory = landings.place(_real(output))
            for root, part in enumerate(parts):
                _check_alike(what, part, output, root if root == self.members.rank else None)
                source = readable(_real(part))
                exchanges.append(exchange.reduction_to(self.members, root, source, memory, meaning))
        return self._launch(what, exchanges, landings, [output for output, _ in pairs], opts, timeout)

    # ---- copies

    def broadcast(self, tensors: Any, opts: Any, timeout: Any = None) -> Work:
        tensors, root = _list(tensors), _root(opts)
        landings, exchanges = Landings(), []
        for tensor in tensors:
            _check_dense("broadcast", tensor)
            if self.members.rank == root:
                source = readable(tensor)
                exchanges.append(exchange.broadcast(self.members, root, source, source))
            else:
                exchanges.append(exchange.broadcast(self.members, root, None, landings.place(tensor)))
        return self._launch("broadcast", exchanges, landings, tensors, opts, timeout)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """outputs[i][r]: inputs[i] of rank r; their shapes may differ from rank to rank."""
        pairs = [(list(parts), tensor) for parts, tensor in zip(_lists(outputs), _list(inputs))]
        return self._allgather("all_gather", pairs, outputs, Landings(), opts, timeout)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """outputs[r][i]: inputs[i] of rank r; the other way round than allgather()."""
        outputs, inputs = [list(parts) for parts in outputs], list(inputs)
        self._check_count("all_gather_coalesced", "output", outputs)
        for rank, parts in enumerate(outputs):
            if len(parts) != len(inputs):
                raise ValueError(
                    f"all_gather_coalesced: {len(parts)} output tensors for rank {rank}, but {len(inputs)} inputs"
                )
        pairs = [(list(parts), tensor) for parts, tensor in zip(zip(*outputs), inputs)]
        return self._allgather("all_gather_coalesced", pairs, outputs, Landings(), opts)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._allgather_single([output], [input], opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._allgather_single([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._allgather_single(outputs, inputs, opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._allgather_single(outputs, inputs, opts)

    def _allgather_single(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        landings = Landings()
        pairs = []
        for output, tensor in zip(outputs, inputs):
            _check_dense("all_gather_into_tensor", tensor)
            if output.numel() != tensor.numel() * self.members.size:
                raise ValueError(
                    f"all_gather_into_tensor: the output has {output.numel()} elements, which must be those of the "
                    f"input, {tensor.numel()}, times the {self.members.size} members of the group"
                )
            memory = landings.place(output)
            pairs.append((list(memory.view(self.members.size, *tensor.shape).unbind(0)), tensor))
        return self._allgather("all_gather_into_tensor", pairs, list(outputs), landings, opts)

    def _allgather(
        self,
        what: str,
        pairs: List[Tuple[List[torch.Tensor], torch.Tensor]],
        result: Any,
        landings: Landings,
        opts: Any,
        timeout: Any = None,
    ) -> Work:
        exchanges = []
        for parts, tensor in pairs:
            _check_dense(what, tensor)
            self._check_count(what, "output", parts)
            source = readable(tensor)
            for root, part in enumerate(parts):
                _check_alike(what, tensor, part, self.members.rank if root == self.members.rank else None)
                exchanges.append(exchange.broadcast(self.members, root, source, landings.place(part)))
        return self._launch(what, exchanges, landings, result, opts, timeout)

    def gather(self, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> Work:
        root, rank = _root(opts), self.members.rank
        tensor = _list(inputs)[0]
        _check_dense("gather", tensor)
        landings = Landings()
        if rank != root:
            sent = [exchange.transfer(self.members, rank, root, readable(tensor), None)]
            return self._launch("gather", sent, landings, [], opts, timeout)
        parts = list(_lists(outputs)[0])
        self._check_count("gather", "output", parts)
        exchanges = []
        for source, part in enumerate(parts):
            if source == root:
                landings.later(readable(tensor).clone(), part)
            else:
                exchanges.append(exchange.transfer(self.members, source, root, None, landings.place(part)))
        return self._launch("gather", exchanges, landings, outputs, opts, timeout)

    def scatter(self, outputs: Any, inputs: Any, opts: Any, timeout: Any = None) -> Work:
        root, rank = _root(opts), self.members.rank
        output = _list(outputs)[0]
        _check_dense("scatter", output)
        landings = Landings()
        if rank != root:
            received = [exchange.transfer(self.members, root, rank, None, landings.place(output))]
            return self._launch("scatter", received, landings, [output], opts, timeout)
        parts = list(_lists(inputs)[0])
        self._check_count("scatter", "input", parts)
        exchanges = []
        for target, part in enumerate(parts):
            if target == root:
                landings.later(readable(part), output)
            else:
                exchanges.append(exchange.transfer(self.members, root, target, readable(part), None))
        return self._launch("scatter", exchanges, landings, [output], opts, timeout)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """outputs[r]: inputs[this rank] of rank r. Shapes may differ from pair to pair."""
        outputs, inputs = list(outputs), list(inputs)
        sources = [readable(tensor) for tensor in inputs]
        return self._alltoall("all_to_all", outputs, sources, outputs, Landings(), opts, timeout)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> Work:
        """Sizes along the first dimension for each rank; empty: equal ones."""
        _check_dense("all_to_all_single", input)
        landings = Landings()
        targets = self._split("output", landings.place(output), output_splits)
        sources = self._split("input", readable(input), input_splits)
        return self._alltoall("all_to_all_single", targets, sources, [output], landings, opts, timeout)

    def all_to_all_single(self, *arguments: Any, **options: Any) -> Work:
        return self.alltoall_base(*arguments, **options)

    def _split(self, which: str, tensor: torch.Tensor, splits: Sequence[int]) -> List[torch.Tensor]:
        rows = tensor.shape[0] if tensor.dim() else 0
        sizes = list(splits)
        if not sizes:
            if rows % self.members.size:
                raise ValueError(
                    f"all_to_all_single: the first dimension of the {which}, {rows}, is not divisible by the "
                    f"{self.members.size} members of the group: give {which}_split_sizes"
                )
            sizes = [rows // self.members.size] * self.members.size
        if len(sizes) != self.members.size or sum(sizes) != rows:
            raise ValueError(
                f"all_to_all_single: {which}_split_sizes {sizes} must be {self.members.size} numbers with the sum "
                f"{rows}, the first dimension of the {which}"
            )
        return list(tensor.split(sizes))

    def _alltoall(
        self,
        what: str,
        targets: List[torch.Tensor],
        sources: List[torch.Tensor],
        result: Any,
        landings: Landings,
        opts: Any,
        timeout: Any = None,
    ) -> Work:
        rank, exchanges = self.members.rank, []
        self._check_count(what, "output", targets)
        self._check_count(what, "input", sources)
        for other in range(self.members.size):
            target, source = targets[other], sources[other]
            if other == rank:
                _check_alike(what, source, target, rank)
                landings.later(source, target)
                continue
            exchanges.append(exchange.transfer(self.members, rank, other, source, None))
            exchanges.append(exchange.transfer(self.members, other, rank, None, landings.place(target)))
        return self._launch(what, exchanges, landings, result, opts, timeout)

    # ---- arguments

    def _check_count(self, what: str, which: str, parts: Sequence[Any]) -> None:
        """A tensor, or a list of them, for each member."""
        count = len(parts)
        if count != self.members.size:
            raise ValueError(f"{what}: {count} {which} tensors for a group of {self.members.size}")


def _check_dense(what: str, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"{what} of a {tensor.layout} tensor is not supported by the backend 'byteps': use tensor.to_dense(), "
            "and for an embedding sparse=False"
        )


def _check_alike(what: str, one: torch.Tensor, other: torch.Tensor, rank: Optional[int]) -> None:
    """Equal dtypes; for this rank's own part (`rank` is given) also the number of elements."""
    if one.dtype != other.dtype:
        raise ValueError(f"{what}: an input of {one.dtype} and an output of {other.dtype}; they must be equal")
    if rank is not None and one.numel() != other.numel():
        raise ValueError(
            f"{what}: what rank {rank} gives to itself has {one.numel()} elements, its place {other.numel()}"
        )


def _list(tensors: Any) -> List[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _lists(tensors: Any) -> List[List[torch.Tensor]]:
    """torch's short forms give one list, its long forms a list of lists."""
    lists = list(tensors)
    return [lists] if lists and isinstance(lists[0], torch.Tensor) else lists


def _root(opts: Any) -> int:
    return opts if isinstance(opts, int) else int(opts.rootRank)
