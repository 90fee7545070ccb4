"""Compare a paged backend with the one of torch's operators, on the device that it is for.

Kernels for GPUs are compiled where they run, for devices that nobody here may know. A backend
that fails there, or computes something else, must not be found out by clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...types.ids import BlockId
from ...types.plan import StepPlan, StepRow
from ..self_check.compare import describe_failure, find_difference
from ..self_check.steps import make_tables
from ..step.layout import lay_out
from ..step.slots import SlotTables
from .backend import PagedBackend, PagedModel
from .bridge import AttentionCall
from .gather import GatherAttention
from .probe import LayerSpec

MakeBackend = Callable[[PagedModel, SlotTables], PagedBackend]

# A prompt, then one more token of it beside another prompt.
_STEPS = (((0, 7),), ((0, 1), (1, 5)))
_MAX_TOKENS = 16


@torch.inference_mode()
def find_disagreement(make_backend: MakeBackend, model: PagedModel) -> str | None:
    """Return why a backend does not compute what torch's operators do; None if it does.

    Args:
      model: each kind of its layers is tried.
    """
    kinds = {replace(layer, module_name=""): layer for layer in model.layers}
    for layer in kinds.values():
        try:
            problem = _compare(make_backend, replace(model, layers=(layer,)))
        except Exception as error:
            problem = describe_failure(error)
        if problem is not None:
            return problem
    return None


def _compare(make_backend: MakeBackend, model: PagedModel) -> str | None:
    """Return how a backend differs in a few steps of random numbers."""
    num_blocks = -(-_MAX_TOKENS // model.block_size)
    model = replace(model, num_blocks=2 * num_blocks)
    tables = make_tables([[0] * _MAX_TOKENS] * 2, model.block_size, model.device)
    backends = GatherAttention(model, tables), make_backend(model, tables)
    chance = torch.Generator().manual_seed(0)
    lengths = [0, 0]
    for parts in _STEPS:
        rows = []
        for slot, num_tokens in parts:
            first = slot * num_blocks
            blocks = range(first, first + num_blocks) if not lengths[slot] else ()
            rows.append(
                StepRow(
                    slot=slot,
                    start=lengths[slot],
                    num_tokens=num_tokens,
                    new_block_ids=tuple(map(BlockId, blocks)),
                    sample=True,
                )
            )
            lengths[slot] += num_tokens
        plan = StepPlan(step_id=0, starts=(), rows=tuple(rows))
        tables.append_blocks(plan.rows)
        layer = model.layers[0]
        tensors = _draw(layer, plan.num_tokens, model, chance)
        expected, actual = (
            _run(each, layer, plan, tables, tensors) for each in backends
        )
        # Each head by itself, because a wrong one is a small part of all numbers.
        problem = find_difference(expected, actual, model.dtype, dim=-1)
        if problem is not None:
            return problem
    return None


def _draw(
    layer: LayerSpec, num_tokens: int, model: PagedModel, chance: torch.Generator
) -> tuple[Tensor, ...]:
    """Return queries, keys and values, (num_tokens, heads, dim) each."""
    shapes = (
        (layer.num_heads, layer.key_dim),
        (layer.num_kv_heads, layer.key_dim),
        (layer.num_kv_heads, layer.value_dim),
    )
    return tuple(
        torch.randn((num_tokens, *shape), generator=chance).to(
            model.device, model.dtype
        )
        for shape in shapes
    )


def _run(
    backend: PagedBackend,
    layer: LayerSpec,
    plan: StepPlan,
    tables: SlotTables,
    tensors: tuple[Tensor, ...],
) -> Tensor:
    """Run one step; returns float32, in the order of the plan."""
    inputs = lay_out(plan, tables, backend.order, tables.block_ids.device)
    places = [
        place
        for row in inputs.rows
        for place in _list_places(plan, plan.rows.index(row))
    ]
    call = AttentionCall(
        scaling=layer.scaling,
        window=layer.window,
        softcap=layer.softcap,
        sinks=layer.sinks,
    )
    query, key, value = (each[places] for each in tensors)
    output = backend.begin(inputs).attend(nn.Module(), query, key, value, call)
    ordered = torch.empty_like(output)
    ordered[places] = output
    return ordered.float()


def _list_places(plan: StepPlan, index: int) -> range:
    begin = sum(row.num_tokens for row in plan.rows[:index])
    return range(begin, begin + plan.rows[index].num_tokens)
