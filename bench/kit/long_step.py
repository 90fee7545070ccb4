"""A step behind many tokens, timed by the processor."""

from __future__ import annotations

from collections.abc import Mapping
import time

import torch

from trioserve.model.attention.gather import GatherAttention
from trioserve.model.runtimes.layers import KernelLayers
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.runtimes.modules.layers import ModuleLayers
from trioserve.model.self_check.steps import make_tables
from trioserve.model.step.layout import lay_out
from trioserve.types.ids import BlockId
from trioserve.types.plan import StepPlan, StepRow

_BLOCK_SIZE, _NUM_RUNS = 16, 5
_CPU = torch.device("cpu")


class LongStep:
    """A step of one sequence, whose earlier keys and values nobody has computed.

    Args:
      num_tokens: that the step computes, behind `start` others.
    """

    def __init__(self, model: LoadedModel, start: int, num_tokens: int = 1) -> None:
        self.kv_bytes = model.info.kv_bytes_per_token
        end = start + num_tokens
        tables = make_tables([[5] * end], _BLOCK_SIZE, _CPU)
        num_blocks = tables.block_ids.numel()
        if model.native is None:
            layers = ModuleLayers(model, tables, num_blocks, GatherAttention)
        else:
            opened = model.native.open(
                tables, num_blocks=num_blocks, kv_dtype=model.kv_dtype
            )
            layers = KernelLayers(model, opened)
        row = StepRow(
            slot=0,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=tuple(map(BlockId, range(num_blocks))),
            sample=True,
        )
        tables.append_blocks([row])
        plan = StepPlan(step_id=0, starts=(), rows=(row,))
        self._inputs = lay_out(plan, tables, layers.order, _CPU)
        self._layers = layers

    @torch.inference_mode()
    def time(self) -> float:
        """Return the processor's milliseconds of a step."""
        arguments = {
            "input_ids": self._inputs.input_ids,
            "position_ids": self._inputs.position_ids,
        }
        begin = time.process_time()
        self._layers.begin(self._inputs).compute(arguments, [0])
        return 1000 * (time.process_time() - begin)


def time_in_turns(steps: Mapping[str, LongStep]) -> dict[str, float]:
    """Return the lowest milliseconds of each step."""
    runs = [[each.time() for each in steps.values()] for _ in range(_NUM_RUNS)]
    return {name: min(times) for name, times in zip(steps, zip(*runs))}
