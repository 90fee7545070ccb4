"""A sequence for which no token is left ends with an error that says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interpreter import require_triton
import pytest
import torch
from torch import Tensor

from trioserve.model.sampling.launched import LaunchedStep
from trioserve.model.sampling.operators import SamplingOperators, TorchOperators
from trioserve.model.sampling.sampler import Sampler
from trioserve.model.step.scans import TorchScans
from trioserve.types.logits import LogitsProcessor, LogitsRow
from trioserve.types.output import SequenceError
from trioserve.types.sampling import SamplingParams

from .planning import make_start

VOCAB_SIZE = 40
CPU = torch.device("cpu")
PLAIN = SamplingParams(temperature=0.0)


class Leave(LogitsProcessor):
    """Leaves the tokens that a request names."""

    name = "leave"

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        for index, row in enumerate(rows):
            assert isinstance(row.arguments, dict)
            left = row.arguments["left"]
            kept = logits[index, left].clone()
            logits[index] = -torch.inf
            logits[index, left] = kept


@pytest.fixture(params=["torch", "triton"])
def operators(request: pytest.FixtureRequest) -> SamplingOperators:
    if request.param == "torch":
        return TorchOperators(TorchScans(), CPU)
    require_triton()
    from trioserve.model.sampling.triton_operators import TritonOperators

    return TritonOperators(CPU)


def leave(*token_ids: int) -> tuple[tuple[str, dict[str, object]], ...]:
    return (("leave", {"left": list(token_ids)}),)


# Each has no token, for the reasons that are named, behind the prompt (1, 2) and after one
# token of output.
DEAD_ENDS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"allowed_token_ids": (3,), "bad_words": ((3,),)},
        ["allowed_token_ids", "bad_words"],
    ),
    (
        {"allowed_token_ids": (3,), "bad_words": ((2, 3),)},
        ["allowed_token_ids", "bad_words"],
    ),
    (
        {"allowed_token_ids": (7,), "min_tokens": 4},
        ["allowed_token_ids", "min_tokens"],
    ),
    ({"logits_processors": leave()}, ["logits_processors.leave"]),
    (
        {"logits_processors": leave(4), "bad_words": ((4,),), "logprobs": 1},
        ["bad_words", "logits_processors.leave"],
    ),
]


def sample(
    operators: SamplingOperators, samplings: list[SamplingParams]
) -> tuple[list[int], dict[int, SequenceError]]:
    """Sample the second token of each sequence, as SamplingWriter does."""
    sampler = Sampler(
        vocab_size=VOCAB_SIZE,
        device=CPU,
        operators=operators,
        logits_processors=[Leave],
    )
    slots = list(range(len(samplings)))
    for slot in slots:
        fields = {"outputs": (2,), "seed": slot, "stops": frozenset({7})}
        sampler.start(make_start(samplings[slot], slot, **fields))
    logits = torch.randn((len(slots), VOCAB_SIZE), generator=torch.manual_seed(0))
    sampled = sampler.sample(slots, [1] * len(slots), logits)
    result = LaunchedStep(step_id=1, slots=tuple(slots), sampled=sampled).finish()
    return [token_id for (token_id,) in result.sampled], result.errors


# As on a GPU, numbers are computed that nobody reads.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "way", [{"temperature": 0.0}, {}, {"top_k": 3, "top_p": 0.9}, {"min_p": 0.2}]
)
def test_a_sequence_without_a_token_left_ends_beside_others(
    operators: SamplingOperators, way: dict[str, Any]
) -> None:
    dead = [SamplingParams(**way, **fields) for fields, _ in DEAD_ENDS]
    alive = [
        PLAIN,
        SamplingParams(**way, allowed_token_ids=(3, 7), min_tokens=4),
        SamplingParams(**way, allowed_token_ids=(7,), min_tokens=1),
        SamplingParams(**way, logits_processors=leave(4)),
        # A bias excludes nothing.
        SamplingParams(**way, allowed_token_ids=(3,), logit_bias=((3, -100.0),)),
    ]
    token_ids, errors = sample(operators, [*alive, *dead])
    assert token_ids[1:5] == [3, 7, 4, 3]
    reasons = [
        SequenceError(
            param=names[0],
            reason=f"no token is left; all are excluded by {' and '.join(names)}",
        )
        for _, names in DEAD_ENDS
    ]
    assert errors == dict(enumerate(reasons, len(alive)))


def test_nothing_is_looked_for_where_nothing_is_excluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("trioserve.model.sampling.sampler.find_dead_ends")
    free = SamplingParams(logit_bias=((3, -100.0),), logprobs=1, top_p=0.5)
    _, errors = sample(TorchOperators(TorchScans(), CPU), [PLAIN, free])
    assert errors == {}
