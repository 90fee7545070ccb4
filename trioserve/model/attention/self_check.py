"""Compare a paged backend with torch's operators, on the device that will run it.

Kernels for GPUs are compiled where they run, for devices that nobody here may know. A backend
that fails there, or computes something else, must not be found out by clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from ...types.ids import BlockId
from ...types.plan import StepPlan, StepRow
from ..self_check.compare import describe_failure, find_difference
from ..self_check.steps import make_tables
from ..step.joined_images import JoinedImages
from ..step.layout import StepInputs, lay_out
from ..step.slots import SlotTables
from .backend import PagedBackend, PagedModel
from .bridge import AttentionCall
from .gather import GatherAttention

MakeBackend = Callable[[PagedModel, SlotTables], PagedBackend]

# A prompt, then one more token of it beside another prompt.
_STEPS = (((0, 7),), ((0, 1), (1, 5)))
_MAX_TOKENS = 16


@torch.inference_mode()
def find_disagreement(make_backend: MakeBackend, model: PagedModel) -> str | None:
    """Return the difference of a backend to torch's operators; None if they agree.

    Args:
      model: each kind of its layers is tried.
    """
    kinds = dict.fromkeys(
        replace(layer, module_name="", shares=None) for layer in model.layers
    )
    for layer in kinds:
        try:
            problem = _compare(make_backend, replace(model, layers=(layer,)))
        except Exception as error:
            problem = describe_failure(error)
        if problem is not None:
            return problem
    return None


def _compare(make_backend: MakeBackend, model: PagedModel) -> str | None:
    pair = BackendPair(make_backend, model, max_num_seqs=2, max_model_len=_MAX_TOKENS)
    for parts in _STEPS:
        # Each head by itself, because a wrong one is a small part of all numbers.
        problem = find_difference(
            *(*pair.run(*parts), model.dtype),
            int8_cache=model.kv_dtype == torch.int8,
            dim=-1,
        )
        if problem is not None:
            return problem
    return None


class BackendPair:
    """Gives a backend and torch's operators the same steps of random numbers.

    Blocks of sequences are not neighbours, and blocks of different slots alternate.

    Args:
      model: has one layer; the number of its blocks does not matter.
      images: positions in each slot of tokens that see each other, if the layer joins images.
    """

    def __init__(
        self,
        make_backend: MakeBackend,
        model: PagedModel,
        *,
        max_num_seqs: int,
        max_model_len: int,
        images: tuple[tuple[int, int], ...] = ((2, 5),),
    ) -> None:
        self._images = images
        num_blocks = max_num_seqs * -(-max_model_len // model.block_size)
        self.model = replace(model, num_blocks=num_blocks)
        prompts = [[0] * max_model_len] * max_num_seqs
        self.tables = make_tables(prompts, model.block_size, model.device)
        self.backends: tuple[PagedBackend, ...] = (
            GatherAttention(self.model, self.tables),
            make_backend(self.model, self.tables),
        )
        self.lengths = [0] * max_num_seqs
        self._chance = torch.Generator().manual_seed(0)

    def run(self, *parts: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Run (slot, number of tokens) of each row.

        Returns:
          (num_tokens, num_heads, value_dim) float32 by torch's operators, and by the backend
        """
        plan = self.plan(*parts)
        tensors = self.draw_inputs(plan.num_tokens)
        expected, actual = (self._run(each, plan, tensors) for each in self.backends)
        return expected, actual

    def plan(self, *parts: tuple[int, int]) -> StepPlan:
        """Plan a step, and give its rows their blocks."""
        rows = tuple(self._make_row(*part) for part in parts)
        self.tables.append_blocks(rows)
        return StepPlan(step_id=0, starts=(), rows=rows)

    def draw_inputs(self, num_tokens: int) -> list[Tensor]:
        """Return random queries, keys and values, (num_tokens, heads, dim) each."""
        (layer,) = self.model.layers
        query = self.draw((num_tokens, layer.num_heads, layer.key_dim))
        key = self.draw((num_tokens, layer.num_kv_heads, layer.key_dim))
        if layer.values_in_keys:
            return [query, key, key[..., : layer.value_dim]]
        value = self.draw((num_tokens, layer.num_kv_heads, layer.value_dim))
        return [query, key, value]

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return random numbers of the model's type on its device."""
        numbers = torch.randn(shape, generator=self._chance)
        return numbers.to(self.model.device, self.model.dtype)

    def _make_row(self, slot: int, num_tokens: int) -> StepRow:
        start = self.lengths[slot]
        end = self.lengths[slot] = start + num_tokens
        size = self.model.block_size
        new = range(-(-start // size), -(-end // size))
        blocks = (BlockId(i * len(self.lengths) + slot) for i in reversed(new))
        return StepRow(
            slot=slot,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=tuple(blocks),
            sample=True,
        )

    def _run(
        self, backend: PagedBackend, plan: StepPlan, tensors: Sequence[Tensor]
    ) -> Tensor:
        """Run one step; returns float32, in the order of the plan."""
        (layer,) = self.model.layers
        images = None
        if layer.joins_images:
            images = JoinedImages.at(self._images, len(self.lengths))
        inputs = lay_out(
            *(plan, self.tables, backend.order, self.model.device), images=images
        )
        places = place_tokens(plan, inputs)
        call = AttentionCall(
            scaling=layer.scaling,
            window=layer.window,
            softcap=layer.softcap,
            sinks=layer.sinks,
        )
        query, key, value = (each[places] for each in tensors)
        output = backend.begin(inputs).attend(nn.Module(), query, key, value, call)
        return output[places.argsort()].float()


def place_tokens(plan: StepPlan, inputs: StepInputs) -> Tensor:
    """Return for each flat token of a step its place in the plan, (num_tokens,)."""
    ends = dict(zip(plan.rows, accumulate(row.num_tokens for row in plan.rows)))
    return torch.cat(
        [torch.arange(ends[row] - row.num_tokens, ends[row]) for row in inputs.rows]
    )
