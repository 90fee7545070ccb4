"""The products of a sublayer that adapters may change, as the kernels have joined them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import ctypes
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ....kernels.structs import (
    AttentionSpec,
    ExpertSpec,
    LatentSpec,
    MatrixSpec,
    MixtureSpec,
    SublayerSpec,
)
from ..description import (
    BesideParts,
    Body,
    LatentParts,
    LookupParts,
    MixtureParts,
    MlpParts,
)
from ..named_products import NamedModule, name_experts, name_router

# SublayerProduct of native/adapters.h.
INPUT, MIDDLE, OUTPUT, NUM_PRODUCTS = range(4)

# MixtureProduct of native/experts.h.
_ROUTER, _SHARED_GATE, _EXPERTS = range(3)

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """Blocks whose outputs come from the same modules.

    Args:
      first_block: the first one.
      first_module, last_module: those, and all between them.
      outputs: (num_blocks * block_size,) places among the outputs of these modules, which
        follow each other; their number stands for an output that is not there.
    """

    first_block: int
    first_module: int
    last_module: int
    outputs: Places


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedProduct:
    """Modules that read the same numbers, whose outputs the kernels compute together.

    Args:
      modules: the products; experts have no modules of their own.
      matrices: as they are packed.
      order: (num_outputs,) the places of the outputs of all matrices among those of the
        modules.
      runs: the blocks of all matrices, in order.
      block_size: outputs of a block.
      columns: (num_inputs,) the place of each input of the modules among those that the
        kernels read; None if they are in order.
    """

    modules: tuple[NamedModule, ...]
    matrices: tuple[MatrixSpec, ...]
    order: Places
    runs: tuple[BlockRun, ...]
    block_size: int
    columns: Places | None

    @property
    def num_inputs(self) -> int:
        return self.modules[0].in_features


def join(
    modules: Sequence[NamedModule],
    matrices: Sequence[MatrixSpec],
    block_size: int,
    *,
    order: Places | None = None,
    columns: Places | None = None,
) -> JoinedProduct:
    """Find the modules of each block of outputs; see JoinedProduct."""
    begins = [0, *accumulate(each.out_features for each in modules)]
    outputs = np.arange(begins[-1]) if order is None else order
    blocks = _cut(outputs, [each.num_outputs for each in matrices], block_size)
    # An output that is not there counts as the first of its block.
    present = np.where(blocks < 0, blocks[:, :1], blocks)
    owners = np.searchsorted(begins, present, side="right") - 1
    ends = np.stack([owners.min(axis=1), owners.max(axis=1)], axis=1)
    changes = np.flatnonzero(np.diff(ends, axis=0).any(axis=1)) + 1
    runs = []
    for first_block, end_block in pairwise([0, *changes.tolist(), len(blocks)]):
        first, last = ends[first_block].tolist()
        begin, end = begins[first], begins[last + 1]
        own = blocks[first_block:end_block]
        run = BlockRun(
            first_block=first_block,
            first_module=first,
            last_module=last,
            outputs=np.where(own < 0, end, own).ravel() - begin,
        )
        runs.append(run)
    return JoinedProduct(
        modules=tuple(modules),
        matrices=tuple(matrices),
        order=outputs,
        runs=tuple(runs),
        block_size=block_size,
        columns=columns,
    )


def _cut(outputs: Places, sizes: Iterable[int], block_size: int) -> Places:
    """Cut the outputs of matrices into blocks; the last block of each may be shorter.

    Args:
      sizes: the number of outputs of each matrix.

    Returns:
      (num_blocks, block_size); -1 stands for an output that is not there.
    """
    parts = np.split(outputs, [*accumulate(sizes)][:-1])
    padded = [
        np.pad(each, (0, -len(each) % block_size), constant_values=-1) for each in parts
    ]
    return np.concatenate(padded).reshape(-1, block_size)


def list_joined(
    body: Body,
    spec: SublayerSpec,
    block_size: int,
    columns: Places | None = None,
) -> Iterator[tuple[int, JoinedProduct]]:
    """List the products of a sublayer, with their places.

    Args:
      spec: the sublayer, packed.
      columns: of its output.
    """
    match body:
        case BesideParts():
            yield from list_joined(body.network, spec, block_size)
            return
        case LookupParts():
            yield INPUT, join([body.gate], _list_inputs(spec), block_size)
        case MlpParts():
            up = _list_inputs(spec)[0]
            yield INPUT, _join_gated(body.inputs, up, spec.gate, block_size)
        case MixtureParts():
            # list_mixture has the products of experts.
            if body.output is None:
                return
            yield INPUT, join(body.inputs, _list_inputs(spec), block_size)
        case _:
            order = None if body.order is None else body.order.numpy()
            yield INPUT, join(body.inputs, _list_inputs(spec), block_size, order=order)
    if isinstance(body, LatentParts) and body.query is not None:
        order = None if body.query_order is None else body.query_order.numpy()
        queries = _find_latent(spec).queries
        assert queries is not None, "the body has its product"
        yield MIDDLE, join([body.query], [queries], block_size, order=order)
    assert body.output is not None, "only mixtures may have none"
    yield OUTPUT, join([body.output], [spec.output], block_size, columns=columns)


def list_mixture(
    mixture: MixtureParts,
    spec: MixtureSpec,
    block_size: int,
    names: Mapping[nn.Module, str],
) -> Iterator[tuple[int, JoinedProduct]]:
    """List the products of a mixture, with their places among these.

    Args:
      spec: the mixture, packed.
      names: of modules.
    """
    router = name_router(mixture, names)
    yield _ROUTER, join([router], [spec.router], block_size)
    if mixture.shared_gate is not None:
        gate = join([mixture.shared_gate], [spec.shared_gate], block_size)
        yield _SHARED_GATE, gate
    packed = ctypes.cast(spec.experts, ctypes.POINTER(ExpertSpec))
    inners = name_experts(mixture, names, mixture.first_name)
    outers = name_experts(mixture, names, "down_proj")
    first: list[JoinedProduct] = []
    for i, (inner, outer) in enumerate(zip(inners, outers)):
        expert = packed[i]
        if not first:
            inputs = _join_gated(
                *([inner], expert.up, expert.gate, block_size),
                outputs=mixture.order_outputs(mixture.first_name),
            )
            first = [inputs, join([outer], [expert.down], block_size)]
        # Experts have the same shapes, and share the places of their outputs.
        matrices = _list_gated(expert.up, expert.gate), (expert.down,)
        for j, own in enumerate((inner, outer)):
            product = replace(first[j], modules=(own,), matrices=matrices[j])
            yield _EXPERTS + 2 * i + j, product
    if (shared := mixture.shared) is not None:
        expert, place = packed[spec.num_experts], _EXPERTS + 2 * spec.num_experts
        yield place, _join_gated(shared.inputs, expert.up, expert.gate, block_size)
        yield place + 1, join([shared.output], [expert.down], block_size)


def _join_gated(
    modules: Sequence[NamedModule],
    up: MatrixSpec,
    gate: MatrixSpec,
    block_size: int,
    *,
    outputs: Tensor | None = None,
) -> JoinedProduct:
    """Join a network's products: what its gate weighs comes before the gate.

    Args:
      outputs: the gates first; None if the modules have them so.
    """
    matrices = _list_gated(up, gate)
    size = up.num_outputs
    places = np.arange(len(matrices) * size) if outputs is None else outputs.numpy()
    order = np.roll(places, size)
    return join(modules, matrices, block_size, order=order)


def _list_gated(up: MatrixSpec, gate: MatrixSpec) -> tuple[MatrixSpec, ...]:
    return (up, gate) if gate.weights else (up,)


def _list_inputs(spec: SublayerSpec) -> list[MatrixSpec]:
    inputs = ctypes.cast(spec.inputs, ctypes.POINTER(MatrixSpec))
    return inputs[: spec.num_inputs]


def _find_latent(spec: SublayerSpec) -> LatentSpec:
    attention = ctypes.cast(spec.attention, ctypes.POINTER(AttentionSpec)).contents
    return ctypes.cast(attention.latent, ctypes.POINTER(LatentSpec)).contents
