"""The host's work for the layout of a step does not grow with its sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trioserve.model.attention.gather import GatherAttention
from trioserve.model.step.layout import lay_out
from trioserve.model.step.slots import SlotTables
from trioserve.types.ids import BlockId
from trioserve.types.plan import StepPlan, StepRow

from ..attention.steps import make_layer, make_model
from ..planning import make_start

BLOCK_SIZE = 16


class HostOperations(TorchDispatchMode):
    """Records torch's operations on tensors of the host, and their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[object, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        shapes = [
            tuple(leaf.shape)
            for leaf in tree_leaves((args, kwargs, result))
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
        ]
        if shapes:
            self.seen.append((str(func), *shapes))
        return result


def lay_out_decodes(
    num_tokens: int, *, num_rows: int = 4, window: int | None = None
) -> list[tuple[object, ...]]:
    """Lay out a step of sequences of `num_tokens` tokens; return the host's operations.

    The device is torch's "meta". It has shapes and no numbers, so reading it fails.
    """
    device = torch.device("meta")
    tables = SlotTables(
        max_num_seqs=num_rows,
        max_model_len=65_536,
        block_size=BLOCK_SIZE,
        device=device,
    )
    layer = make_layer(heads=(1, 1), dims=(1, 1), window=window, softcap=30.0)
    dtype = torch.bfloat16
    model = make_model(layer=layer, block_size=BLOCK_SIZE, dtype=dtype, device=device)
    backend = GatherAttention(model, tables)
    for slot in range(num_rows):
        outputs = (5,) * (num_tokens - 3)
        tables.start(make_start(slot=slot, prompt=(1, 2, 3), outputs=outputs))
    rows = tuple(
        StepRow(
            slot=slot,
            start=num_tokens,
            num_tokens=1,
            new_block_ids=(BlockId(slot),),
            sample=True,
        )
        for slot in range(num_rows)
    )
    with HostOperations() as host:
        tables.append_blocks(rows)
        plan = StepPlan(step_id=1, starts=(), rows=rows)
        backend.begin(lay_out(plan, tables, backend.order, device))
    return host.seen


@pytest.mark.parametrize("window", [None, 64])
def test_the_host_does_the_same_after_100_and_after_60_000_tokens(
    window: int | None,
) -> None:
    short = lay_out_decodes(100, window=window)
    long = lay_out_decodes(60_000, window=window)
    assert short == long != []
    # They are small, too: bytes of three numbers for each row.
    sizes = [torch.Size(shape).numel() for _, *shapes in long for shape in shapes]
    assert max(sizes) <= 96


def test_a_step_has_the_adapters_of_its_rows_in_the_order_of_their_tokens() -> None:
    device = torch.device("cpu")
    tables = SlotTables(
        max_num_seqs=3, max_model_len=32, block_size=BLOCK_SIZE, device=device
    )

    def find(slots: tuple[int, ...]) -> tuple[int, ...]:
        rows = tuple(
            StepRow(
                slot=slot, start=0, num_tokens=1, new_block_ids=(), sample=slot == 0
            )
            for slot in slots
        )
        plan = StepPlan(step_id=1, starts=(), rows=rows)
        return lay_out(
            plan, tables, lambda rows: [*range(len(rows))][::-1], device
        ).adapters

    for slot, adapter in enumerate((5, 0, 7)):
        tables.start(make_start(slot=slot, adapter=adapter))
    assert find((0, 1, 2)) == (7, 0, 5)
    assert find((1,)) == ()
    tables.start(make_start(slot=0))
    assert find((0,)) == (), "the slot has another sequence"
