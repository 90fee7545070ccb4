"""The start of a sequence in a slot, of which most tests want a few facts only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trioserve.types.plan import SlotStart
from trioserve.types.sampling import SamplingParams


def make_start(
    sampling: SamplingParams = SamplingParams(),
    slot: int = 0,
    *,
    prompt: Sequence[int] = (1,),
    outputs: Sequence[int] = (),
    seed: int = 0,
    stops: frozenset[int] = frozenset(),
    **fields: Any,
) -> SlotStart:
    return SlotStart(
        slot=slot,
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(outputs),
        sampling=sampling,
        seed=seed,
        stop_token_ids=stops,
        **fields,
    )
