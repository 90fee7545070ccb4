"""Steps of an attention backend beside the same steps of torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from trioserve.model.attention.backend import PagedBackend, PagedModel
from trioserve.model.attention.bridge import AttentionCall
from trioserve.model.attention.gather import GatherAttention
from trioserve.model.attention.probe import LayerSpec
from trioserve.model.step.layout import (
    StepInputs,
    lay_out,
)
from trioserve.model.step.slots import SlotTables
from trioserve.types.ids import BlockId
from trioserve.types.plan import SlotStart, StepPlan, StepRow
from trioserve.types.sampling import SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

MakeBackend = Callable[[PagedModel, SlotTables], PagedBackend]


def make_layer(
    *,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (16, 16),
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> LayerSpec:
    generator = torch.Generator().manual_seed(0)
    return LayerSpec(
        module_name="layer",
        num_heads=heads[0],
        num_kv_heads=heads[1],
        key_dim=dims[0],
        value_dim=dims[1],
        is_causal=True,
        window=window,
        scaling=dims[0] ** -0.5,
        softcap=softcap,
        sinks=torch.randn(heads[0], generator=generator).to(DEVICE) if sinks else None,
    )


class Steps:
    """Gives a backend and the one of torch's operators the same steps.

    Blocks of sequences are not neighbours, and those of different slots alternate.
    """

    def __init__(
        self,
        make_backend: MakeBackend,
        layer: LayerSpec,
        *,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        max_num_seqs: int = 6,
        max_model_len: int = 96,
    ) -> None:
        self._layer = layer
        self._dtype = dtype
        self._num_seqs = max_num_seqs
        self._block_size = block_size
        num_blocks = max_num_seqs * -(-max_model_len // block_size)
        model = PagedModel(
            layers=(layer,),
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=dtype,
            device=DEVICE,
        )
        self._tables = SlotTables(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=block_size,
            device=DEVICE,
        )
        self._backends: tuple[PagedBackend, ...] = (
            GatherAttention(model, self._tables),
            make_backend(model, self._tables),
        )
        self._lengths = [0] * max_num_seqs
        self._generator = torch.Generator().manual_seed(1)

    def fill(self, slot: int, num_tokens: int) -> None:
        """Begin a sequence whose first keys and values are in the caches already."""
        assert not self._lengths[slot]
        plan = self._begin((slot, num_tokens))
        blocks = self._tables.block_ids[slot, : len(plan.rows[0].new_block_ids)]
        one, other = (backend.caches[0].blocks for backend in self._backends)
        shape = one[blocks].shape
        one[blocks] = other[blocks] = self._draw(shape)

    def step(self, *parts: tuple[int, int], number: float = 0.0) -> float:
        """Run (slot, number of tokens) of each row; return the largest difference.

        Args:
          number: added to the first key.
        """
        plan = self._begin(*parts)
        layer = self._layer
        tensors = [
            self._draw((plan.num_tokens, *shape))
            for shape in (
                (layer.num_heads, layer.key_dim),
                (layer.num_kv_heads, layer.key_dim),
                (layer.num_kv_heads, layer.value_dim),
            )
        ]
        tensors[1][0, 0, 0] += number
        # In the order of the plan, whatever order a backend wants.
        expected, output = (
            self._run(backend, plan, tensors).double() for backend in self._backends
        )
        assert output.isfinite().all()
        return float((expected - output).abs().max())

    def _begin(self, *parts: tuple[int, int]) -> StepPlan:
        plan = StepPlan(
            step_id=1,
            starts=tuple(
                start_slot(slot) for slot, _ in parts if not self._lengths[slot]
            ),
            rows=tuple(self._make_row(*part) for part in parts),
        )
        for start in plan.starts:
            self._tables.start(start)
        self._tables.append_blocks(plan.rows)
        return plan

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(DEVICE, self._dtype)

    def _make_row(self, slot: int, num_tokens: int) -> StepRow:
        start = self._lengths[slot]
        end = self._lengths[slot] = start + num_tokens
        size = self._block_size
        new = range(-(-start // size), -(-end // size))
        blocks = tuple(BlockId(i * self._num_seqs + slot) for i in reversed(new))
        return StepRow(
            slot=slot,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=blocks,
            sample=True,
        )

    def _run(
        self, backend: PagedBackend, plan: StepPlan, tensors: Sequence[Tensor]
    ) -> Tensor:
        step = lay_out(plan, self._tables, backend.order, DEVICE)
        places = place_tokens(plan, step)
        call = AttentionCall(
            scaling=self._layer.scaling,
            window=self._layer.window,
            softcap=self._layer.softcap,
            sinks=self._layer.sinks,
        )
        output = backend.begin(step).attend(
            nn.Module(), *(each[places] for each in tensors), call
        )
        return output[places.argsort()]


def start_slot(slot: int) -> SlotStart:
    return SlotStart(
        slot=slot,
        prompt_token_ids=(0,) * 96,
        output_token_ids=(),
        sampling=SamplingParams(),
        seed=0,
    )


def place_tokens(plan: StepPlan, step: StepInputs) -> Tensor:
    """Return for each flat token of a step its place in the plan, (num_tokens,)."""
    ends = dict(zip(plan.rows, accumulate(row.num_tokens for row in plan.rows)))
    return torch.cat(
        [torch.arange(ends[row] - row.num_tokens, ends[row]) for row in step.rows]
    )


def run_story(steps: Steps, limit: float) -> None:
    """Prompts in chunks beside decodes, in all the ways in which rows meet."""
    # Whole prompts, one of a single token; lengths are no multiples of anything.
    assert steps.step((0, 13), (1, 1), (2, 7)) < limit
    # Chunks, one of them behind its prefix, beside decodes, in an order of no backend.
    assert steps.step((0, 1), (2, 9), (1, 1), (3, 38)) < limit
    # Decodes alone: some, and one, whose keys have more splits.
    assert steps.step((3, 1), (1, 1), (0, 1)) < limit
    assert steps.step((3, 1)) < limit


LAYERS = {
    "plain": make_layer(),
    "one head of keys": make_layer(heads=(3, 1)),
    "no groups": make_layer(heads=(2, 2), dims=(8, 8)),
    "odd dims": make_layer(heads=(6, 2), dims=(24, 20)),
    "window": make_layer(window=5),
    "window of one": make_layer(window=1),
    "softcap": make_layer(softcap=2.0),
    "sinks": make_layer(sinks=True),
    "all": make_layer(heads=(6, 2), window=11, softcap=3.0, sinks=True),
}
