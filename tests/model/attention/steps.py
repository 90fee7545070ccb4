"""Steps of an attention backend beside the same steps of torch's operators."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from trioserve.model.attention.backend import PagedModel
from trioserve.model.attention.bridge import AttentionCall
from trioserve.model.attention.gather import GatherAttention
from trioserve.model.attention.probe import LayerSpec
from trioserve.model.attention.self_check import BackendPair, MakeBackend
from trioserve.model.self_check.steps import make_tables
from trioserve.model.step.layout import lay_out
from trioserve.model.step.slots import SlotTables
from trioserve.types.ids import BlockId
from trioserve.types.plan import StepPlan, StepRow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_layer(
    *,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (16, 16),
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    joins_images: bool = False,
    values_in_keys: bool = False,
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
        joins_images=joins_images,
        values_in_keys=values_in_keys,
        sinks=torch.randn(heads[0], generator=generator).to(DEVICE) if sinks else None,
    )


def make_model(
    *,
    layer: LayerSpec | None = None,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    device: torch.device = DEVICE,
) -> PagedModel:
    return PagedModel(
        layers=(layer or LAYERS["plain"],),
        num_blocks=1,
        block_size=block_size,
        dtype=dtype,
        device=device,
    )


class Steps(BackendPair):
    """Gives a backend and the one of torch's operators the same steps."""

    def __init__(
        self,
        make_backend: MakeBackend,
        layer: LayerSpec,
        *,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        max_model_len: int = 96,
        **images: tuple[tuple[int, int], ...],
    ) -> None:
        model = make_model(layer=layer, block_size=block_size, dtype=dtype)
        super().__init__(
            make_backend, model, max_num_seqs=6, max_model_len=max_model_len, **images
        )
        self._number = 0.0

    def fill(self, slot: int, num_tokens: int) -> None:
        """Begin a sequence whose first keys and values are in the caches already."""
        assert not self.lengths[slot]
        plan = self.plan((slot, num_tokens))
        blocks = self.tables.block_ids[slot, : len(plan.rows[0].new_block_ids)]
        shape = self.backends[0].caches[0].blocks[blocks].shape
        # Numbers that all types of caches hold exactly.
        codes = (32 * self.draw(shape)).round().clamp(-127, 127)
        for backend in self.backends:
            cache = backend.caches[0]
            if cache.scales is None:
                cache.blocks[blocks] = (codes / 32).to(cache.blocks.dtype)
            else:
                cache.blocks[blocks] = codes.to(torch.int8)
                cache.scales[:, blocks] = 1 / 32

    def step(self, *parts: tuple[int, int], number: float = 0.0) -> float:
        """Run (slot, number of tokens) of each row; return the largest difference.

        Args:
          number: added to the first key.
        """
        self._number = number
        expected, output = (each.double() for each in self.run(*parts))
        assert output.isfinite().all()
        return float((expected - output).abs().max())

    def draw_inputs(self, num_tokens: int) -> list[Tensor]:
        tensors = super().draw_inputs(num_tokens)
        tensors[1][0, 0, 0] += self._number
        return tensors


def round_trip(rows: Tensor) -> Tensor:
    """The rule in double precision: 127 steps up to the largest magnitude of a row."""
    rows = rows.double()
    scales = rows.abs().amax(dim=-1, keepdim=True) / 127
    return ((rows / scales).round() * scales).float()


class RoundedSteps(Steps):
    """Its keys and values are such as the cache gives back."""

    def draw_inputs(self, num_tokens: int) -> list[Tensor]:
        query, *others = super().draw_inputs(num_tokens)
        return [query, *(round_trip(each).to(each.dtype) for each in others)]


def run_story(steps: Steps, limit: float) -> None:
    """Prompts in chunks beside decodes, in all the ways in which rows meet."""
    # Whole prompts, one of a single token; lengths are not multiples of anything.
    assert steps.step((0, 13), (1, 1), (2, 7)) < limit
    # Chunks, one of them behind its prefix, beside decodes, in an order of no backend.
    assert steps.step((0, 1), (2, 9), (1, 1), (3, 38)) < limit
    # Decodes alone: some, and one, whose keys have more splits.
    assert steps.step((3, 1), (1, 1), (0, 1)) < limit
    assert steps.step((3, 1)) < limit


def check_sharing(make_backend: MakeBackend) -> None:
    """A layer that shares reads the other's keys and values, and writes none there."""
    layer = LAYERS["plain"]
    model = replace(
        make_model(), layers=(layer, replace(layer, shares=0)), num_blocks=2
    )
    tables = make_tables([[0] * 6], model.block_size, DEVICE)
    backend = make_backend(model, tables)
    for start, num_tokens, block in ((0, 3, 0), (3, 1, None), (4, 1, 1), (5, 1, None)):
        row = StepRow(
            slot=0,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=() if block is None else (BlockId(block),),
            sample=True,
        )
        tables.append_blocks([row])
        plan = StepPlan(step_id=0, starts=(), rows=(row,))
        step = backend.begin(lay_out(plan, tables, backend.order, DEVICE))
        query = torch.randn(num_tokens, layer.num_heads, layer.key_dim, device=DEVICE)
        keys = torch.randn(num_tokens, layer.num_kv_heads, layer.key_dim, device=DEVICE)
        # At the start of a sequence, keys may be read where the layer has them.
        other = keys if start == 0 else torch.zeros_like(keys)
        call = AttentionCall(scaling=layer.scaling)
        expected = step.attend(nn.Module(), query, keys, keys + 1, call)
        output = step.attend(nn.Module(), query, other, other + 1, call)
        assert torch.equal(output, expected)


def check_windows(make_backend: MakeBackend) -> None:
    """Layers with windows read few blocks of their own, which are taken again and again."""
    layers = (LAYERS["plain"], LAYERS["window"])
    model = replace(make_model(), layers=layers, num_blocks=8)
    sizes = {"max_num_seqs": 1, "max_model_len": 32, "block_size": model.block_size}
    expected_tables = SlotTables(**sizes, device=DEVICE)
    expected = GatherAttention(model, expected_tables)
    tables = SlotTables(**sizes, device=DEVICE, has_windows=True)
    backend = make_backend(replace(model, num_window_blocks=4), tables)
    chance = torch.Generator().manual_seed(0)
    start = 0
    for num_tokens in (6, 1, 1, 1, 3, 1, 7, 1, 1, 1, 1, 1):
        end = start + num_tokens
        new = range(-(-start // 4), -(-end // 4))
        row = StepRow(
            slot=0,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=tuple(map(BlockId, new)),
            # A window and a chunk need four blocks.
            new_window_ids=tuple(BlockId(i % 4) for i in new),
            sample=True,
        )
        plan = StepPlan(step_id=0, starts=(), rows=(row,))
        steps = []
        for own_tables, each in ((expected_tables, expected), (tables, backend)):
            own_tables.append_blocks([row])
            inputs = lay_out(plan, own_tables, each.order, DEVICE)
            steps.append(each.begin(inputs))
        for layer in layers:
            heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
            tensors = [
                torch.randn(num_tokens, count, layer.key_dim, generator=chance)
                for count in heads
            ]
            call = AttentionCall(scaling=layer.scaling, window=layer.window)
            outputs = [
                step.attend(nn.Module(), *(each.to(DEVICE) for each in tensors), call)
                for step in steps
            ]
            torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=1e-5)
        start = end


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
    "latents": make_layer(heads=(4, 1), dims=(48, 32), values_in_keys=True),
    # Two programs share the heads of a token.
    "odd latents": make_layer(heads=(18, 1), dims=(28, 20), values_in_keys=True),
}
