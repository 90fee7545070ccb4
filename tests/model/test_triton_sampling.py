"""The sampler's kernels choose the tokens that torch's operators choose."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
import math
from typing import Any

from interpreter import require_triton
import pytest
import torch
from torch import Tensor

require_triton()

from trioserve.kernels.triton.sampling import (  # noqa: E402
    Kept,
    choose_plain,
    choose_tokens,
)
from trioserve.model.sampling.choice import Choice, prepare_choice  # noqa: E402
from trioserve.model.sampling.choose_operators import (  # noqa: E402
    choose_operators,
    find_disagreement,
)
from trioserve.model.sampling.draw import make_key  # noqa: E402
from trioserve.model.sampling.operators import (  # noqa: E402
    RepeatedTokens,
    SamplingOperators,
    TorchOperators,
)
from trioserve.model.sampling.sampler import Sampler  # noqa: E402
from trioserve.model.sampling.triton_operators import TritonOperators  # noqa: E402
from trioserve.model.step.scans import TorchScans, make_noise  # noqa: E402
from trioserve.types.sampling import SamplingParams  # noqa: E402

from .planning import make_start  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ORACLE = TorchOperators(TorchScans(), DEVICE)
GREEDY = SamplingParams(temperature=0.0)
MIXED = (
    GREEDY,
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_p=0.9),
    SamplingParams(top_k=7),
    SamplingParams(temperature=0.5, min_p=0.1),
    SamplingParams(temperature=0.8, top_k=60, top_p=0.6, min_p=0.01),
    SamplingParams(temperature=2.0, top_k=3000, top_p=0.99),
)


def draw_logits(num_rows: int, vocab_size: int, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    return (scale * torch.randn((num_rows, vocab_size), generator=generator)).to(DEVICE)


def prepare(samplings: tuple[SamplingParams, ...], vocab_size: int) -> list[Choice]:
    """Each row has another seed."""
    return [
        prepare_choice(make_start(sampling, seed=seed), vocab_size, DEVICE)
        for seed, sampling in enumerate(samplings)
    ]


def choose(
    operators: SamplingOperators, logits: Tensor, choices: list[Choice]
) -> list[int]:
    chosen: list[int]
    chosen = operators.choose(logits.clone(), choices, [3] * len(choices)).tolist()
    return chosen


def draw_with(
    logits: Tensor,
    keys: list[int],
    *,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> list[int]:
    """Draw from one row's logits, once with each key."""
    count = len(keys)
    is_cut = top_k is not None or top_p < 1.0
    way, limit = 2 if is_cut else 1, top_k or len(logits)
    rows = [
        [1.0, top_p, limit, way, min_p, key % 2**32, key // 2**32 % 2**32]
        for key in keys
    ]
    settings = torch.tensor(rows, dtype=torch.float64, device=DEVICE)
    chosen: list[int] = choose_tokens(
        logits.expand(count, -1).contiguous(), settings, has_cut=is_cut
    ).tolist()
    return chosen


def find_key(logits: Tensor, token_ids: list[int], winner: int) -> int:
    """Return a key with which this one of the tokens wins."""
    keys = torch.tensor([make_key(3, index) for index in range(20_000)])
    sums = logits[token_ids] + make_noise(keys[:, None], torch.tensor(token_ids))
    found = sums.argmax(dim=-1) == token_ids.index(winner)
    return int(keys[found][0])


def check_kept(
    logits: Tensor, kept: list[int], excluded: int | None = None, **limits: Any
) -> None:
    """Check which tokens may come, by keys with which one at the limit wins.

    Args:
      kept: the tokens that may come, the last one at the limit.
      excluded: one beyond the limit.
    """
    keys, expected = [find_key(logits.cpu(), kept, kept[-1])], [kept[-1]]
    if excluded is not None:
        keys.append(find_key(logits.cpu(), [*kept, excluded], excluded))
        noise = make_noise(torch.tensor(keys[1]), torch.tensor(kept))
        expected.append(kept[int((logits.cpu()[kept] + noise).argmax())])
    assert draw_with(logits, keys, **limits) == expected


def list_kept(
    logits: Tensor, top_k: int | None, top_p: float, min_p: float
) -> list[tuple[int, float]]:
    """Return the tokens that may come, the likeliest first, by a sort and a loop."""
    logits = logits.masked_fill(logits < logits.max() + math.log(min_p or 1e-30), -1e30)
    values, token_ids = logits.sort(descending=True, stable=True)
    weights = (values - values[0]).exp()[:top_k]
    sums = weights.double().cumsum(0)
    is_kept = sums - weights < top_p * sums[-1]
    kept = weights.double()[is_kept] / weights.double()[is_kept].sum()
    return list(zip(token_ids[:top_k][is_kept].tolist(), kept.tolist()))


@pytest.mark.parametrize("vocab_size", [1, 257, 4099])
def test_rows_of_mixed_settings_get_the_tokens_of_torch(vocab_size: int) -> None:
    logits = draw_logits(len(MIXED), vocab_size)
    choices = prepare(MIXED, vocab_size)
    expected = choose(ORACLE, logits, choices)
    assert choose(TritonOperators(DEVICE), logits, choices) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 257, 4099])
@pytest.mark.parametrize(
    "samplings", [(GREEDY, MIXED[1], GREEDY, SamplingParams()), MIXED[:4]]
)
def test_plain_rows_get_the_tokens_of_torch(
    vocab_size: int, dtype: torch.dtype, samplings: tuple[SamplingParams, ...]
) -> None:
    """In 16 bits many logits are equal, and the first of them wins."""
    logits = draw_logits(4, vocab_size).to(dtype)
    choices, counts = prepare(samplings, vocab_size), [3] * 4
    chosen = TritonOperators(DEVICE).choose_plain(logits, choices, counts)
    assert chosen.tolist() == choose(ORACLE, logits.float(), choices)
    assert torch.equal(chosen, ORACLE.choose_plain(logits, choices, counts))
    assert torch.equal(logits, draw_logits(4, vocab_size).to(dtype))


def test_tokens_of_a_captured_step_go_to_their_places_and_slots() -> None:
    logits = draw_logits(4, 300)
    best = logits.argmax(dim=-1).tolist()
    last = torch.full((6,), -7, device=DEVICE)
    kept = Kept(
        places=torch.tensor([1, -1, 0, -1], dtype=torch.int32, device=DEVICE),
        slots=torch.tensor([5, 2, 3, -1], device=DEVICE),
        last_tokens=last,
    )
    none = torch.zeros(4, device=DEVICE)
    chosen = choose_plain(logits, none, none.long(), kept)
    assert chosen[:2].tolist() == [best[2], best[0]]
    assert last.tolist() == [-7, -7, -7, best[2], -7, best[0]]
    # One is cut to the likeliest token, and one is greedy.
    settings = torch.zeros(4, 7, dtype=torch.float64, device=DEVICE)
    settings[2] = torch.tensor([1.0, 1.0, 1.0, 2.0, 0.0, 3.0, 4.0])
    last.fill_(-7)
    chosen = choose_tokens(logits.bfloat16(), settings, has_cut=True, kept=kept)
    best = logits.bfloat16().argmax(dim=-1).tolist()
    assert chosen[:2].tolist() == [best[2], best[0]]
    assert last.tolist() == [-7, -7, -7, best[2], -7, best[0]]


def test_a_large_nucleus_is_drawn_from_too() -> None:
    """All tokens are nearly as likely, so thousands are listed, in several parts."""
    samplings = (SamplingParams(top_p=0.99), SamplingParams(top_k=4500, top_p=0.5))
    logits = draw_logits(2, 5000, 0.01)
    choices = prepare(samplings, 5000)
    expected = choose(ORACLE, logits, choices)
    assert choose(TritonOperators(DEVICE), logits, choices) == expected


# A few values, so that many tokens are equally likely.
TIED = (draw_logits(1, 57)[0] / 1.5).round() * 1.5


@pytest.mark.parametrize(
    "top_k, top_p, min_p",
    [(9, 1.0, 0.0), (None, 0.5, 0.0), (20, 0.75, 0.0), (50, 0.9, 0.1), (57, 0.8, 0.3)],
)
def test_the_tokens_that_may_come_are_those_of_a_sort(
    top_k: int | None, top_p: float, min_p: float
) -> None:
    """Of equally likely tokens at the limit, only so many may come as are needed to reach it,
    the first in the vocabulary.
    """
    logits = TIED.cpu()
    kept = [token_id for token_id, _ in list_kept(logits, top_k, top_p, min_p)]
    next_id = int(logits.argsort(descending=True, stable=True)[len(kept)])
    check_kept(TIED, kept, next_id, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.mark.parametrize("top_p, num_kept", [(0.5, 2), (0.51, 3), (0.75, 3), (1.0, 4)])
def test_a_share_that_is_reached_exactly_is_enough(top_p: float, num_kept: int) -> None:
    excluded = num_kept if num_kept < 4 else None
    logits = torch.zeros(4, device=DEVICE)
    check_kept(logits, list(range(num_kept)), excluded, top_k=4, top_p=top_p)


def test_a_token_as_likely_as_min_p_wants_may_come() -> None:
    logits = torch.tensor([0.2, 0.5, 0.25, 0.2], device=DEVICE).log()
    check_kept(logits, [1, 2], 0, min_p=0.5)


def test_both_zeros_are_equally_likely() -> None:
    logits = torch.tensor([1.0, -0.0, 0.0], device=DEVICE)
    check_kept(logits, [0, 1], 2, top_k=2)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "top_k, top_p, min_p", [(None, 1.0, 0.05), (5, 0.9, 0.0), (None, 1.0, 0.0)]
)
def test_frequencies_pass_a_chi_square_test(
    top_k: int | None, top_p: float, min_p: float
) -> None:
    logits, num_draws = draw_logits(1, 8, 1.0)[0], 500
    keys = [make_key(3, index) for index in range(num_draws)]
    drawn = Counter(draw_with(logits, keys, top_k=top_k, top_p=top_p, min_p=min_p))
    kept = list_kept(logits.cpu(), top_k, top_p, min_p)
    assert set(drawn) <= {token_id for token_id, _ in kept}
    distance = sum(
        (drawn[token_id] - share * num_draws) ** 2 / (share * num_draws)
        for token_id, share in kept
    )
    # The 99.9th percentile of the distribution with 7 degrees of freedom.
    assert distance < 24.3


def test_penalties_are_those_of_torch() -> None:
    logits = draw_logits(4, 1100)
    counts = torch.arange(3 * 1100, dtype=torch.int32, device=DEVICE).view(3, -1) % 4
    repeated = RepeatedTokens(
        places=torch.tensor([3, 0], device=DEVICE),
        rows=torch.tensor([0, 2], device=DEVICE),
        counts=counts,
        seen=counts != 1,
        penalties=torch.tensor([[1.3, 0.8], [0.1, -0.4], [0.7, 0.0]], device=DEVICE),
    )
    expected, actual = logits.clone(), logits.clone()
    ORACLE.penalize(expected, repeated)
    TritonOperators(DEVICE).penalize(actual, repeated)
    assert torch.equal(actual, expected)
    assert torch.equal(actual[1:3], logits[1:3]) and not torch.equal(actual, logits)


# As on a GPU, numbers are computed that nobody reads.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_broken_logits_draw_some_token(broken: float) -> None:
    samplings = (GREEDY, SamplingParams(), SamplingParams(top_p=0.5, min_p=0.1))
    for logits in (torch.full((3, 70), broken), draw_logits(3, 70).cpu()):
        logits[:, 7] = broken
        operators, choices = TritonOperators(DEVICE), prepare(samplings, 70)
        chosen = choose(operators, logits.to(DEVICE), choices)
        plain = operators.choose_plain(logits[:2].to(DEVICE), choices[:2], [0, 0])
        assert all(0 <= token_id < 70 for token_id in (*chosen, *plain.tolist()))


def test_a_sampler_samples_the_same_with_them_and_waits_for_nothing(
    no_sync: Any,
) -> None:
    samplings = [
        replace(each, repetition_penalty=1.2, presence_penalty=0.5, logprobs=2)
        for each in MIXED[:3]
    ]
    samplers = [
        Sampler(vocab_size=90, device=DEVICE, operators=operators)
        for operators in (ORACLE, TritonOperators(DEVICE))
    ]
    slots = list(range(len(samplings)))
    for sampler in samplers:
        for slot in slots:
            sampler.start(
                make_start(samplings[slot], slot, prompt=(1, 2, 3), seed=slot)
            )
    for step in range(2):
        logits = draw_logits(len(slots), 90, 1.0 + step)
        results = []
        for sampler in samplers:
            # Triton's interpreter copies everything to the host.
            with no_sync("interpreter.py"):
                sampled = sampler.sample(slots, [step] * len(slots), logits)
            results.append((sampled.ids.read(), sampled.read_reports()))
        assert results[0] == results[1]


def test_operators_are_compared_before_they_are_used() -> None:
    class Other(TorchOperators):
        def choose(self, *arguments: Any) -> Tensor:
            return super().choose(*arguments).flip(0)

    class OtherPlain(TorchOperators):
        def choose_plain(self, *arguments: Any) -> Tensor:
            return super().choose_plain(*arguments).flip(0)

    class Forgetful(TorchOperators):
        def penalize(self, scores: Tensor, repeated: RepeatedTokens) -> None:
            """Lower nothing."""

    class Failing(TorchOperators):
        def choose(self, *arguments: Any) -> Tensor:
            raise ValueError("no such instruction")

    scans = TorchScans()
    found = [
        find_disagreement(kind(scans, DEVICE), ORACLE, DEVICE, 40)
        for kind in (TorchOperators, Other, OtherPlain, Forgetful, Failing)
    ]
    assert found == [
        None,
        "it samples other tokens",
        "it samples other tokens",
        "its penalties differ",
        "it fails: no such instruction",
    ]
    assert find_disagreement(TritonOperators(DEVICE), ORACLE, DEVICE, 40) is None


def test_without_a_gpu_or_without_native_kernels_torch_samples() -> None:
    scans = TorchScans()
    chosen = [
        choose_operators(scans, torch.device("cpu"), 40),
        choose_operators(scans, DEVICE, 40, wants_native=False),
    ]
    assert all(isinstance(each, TorchOperators) for each in chosen)
