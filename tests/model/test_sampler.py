"""The effect of each sampling parameter on the next token."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from trioserve.model.sampling.sampler import Sampler
from trioserve.model.step.scans import Scans, TorchScans
from trioserve.types.output import TokenLogprobs
from trioserve.types.sampling import SamplingParams

from .planning import make_start

VOCAB_SIZE = 600


class Token(NamedTuple):
    """The sampled token of a row."""

    token_id: int
    logprobs: TokenLogprobs | None


def sample(
    sampler: Sampler, slots: list[int], num_outputs: list[int], logits: Tensor
) -> list[Token]:
    """Sample, and wait for the result."""
    sampled = sampler.sample(slots, num_outputs, logits)
    reports = sampled.read_reports()
    return [Token(i, reports.get(row)) for row, i in enumerate(sampled.ids.read())]


def make_logits(num_rows: int = 1, seed: int = 0, vocab: int = VOCAB_SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn((num_rows, vocab), generator=generator)


def make_sampler(
    *samplings: SamplingParams,
    prompt: tuple[int, ...] = (1, 2, 3),
    outputs: tuple[int, ...] = (),
    stops: frozenset[int] = frozenset(),
    vocab_size: int = VOCAB_SIZE,
    scans: Scans | None = None,
) -> Sampler:
    """Make a sampler whose slots 0, 1, ... have these parameters."""
    sampler = Sampler(vocab_size=vocab_size, device=torch.device("cpu"), scans=scans)
    for slot, sampling in enumerate(samplings):
        starts = {"prompt": prompt, "outputs": outputs, "stops": stops}
        sampler.start(make_start(sampling, slot, seed=sampling.seed or 0, **starts))
    return sampler


def sample_one(
    sampling: SamplingParams, logits: Tensor, num_outputs: int = 0, **start: object
) -> Token:
    sampler = make_sampler(sampling, **start)  # type: ignore[arg-type]
    return sample(sampler, [0], [num_outputs], logits)[0]


def find_best(logits: Tensor) -> int:
    return int(logits[0].argmax())


GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_are_sampled(temperature: float) -> None:
    logits = make_logits()
    allowed = tuple(logits[0].argsort()[:3].tolist())
    sampling = SamplingParams(temperature=temperature, allowed_token_ids=allowed)
    free = SamplingParams(temperature=0.0)
    sampler = make_sampler(sampling, free)
    both = sample(sampler, [0, 1], [0, 0], logits.repeat(2, 1))
    assert both[0].token_id in allowed
    assert both[1].token_id == find_best(logits)


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_temperature_is_greedy(temperature: float, dtype: torch.dtype) -> None:
    logits = make_logits(40).to(dtype)
    sampler = make_sampler(*[SamplingParams(temperature=temperature)] * 40)
    sampled = sample(sampler, list(range(40)), [0] * 40, logits)
    assert [token.token_id for token in sampled] == logits.argmax(-1).tolist()


def test_logits_are_left_as_they_are() -> None:
    logits = make_logits()
    before = logits.clone()
    sampling = SamplingParams(
        **{"temperature": 0.7, "top_k": 4, "min_p": 0.1, "logprobs": 1},
        **{"logit_bias": ((5, 9.0),), "bad_words": ((1,), (3, 2))},
    )
    sample_one(sampling, logits)
    assert torch.equal(logits, before)


def test_a_row_samples_the_same_in_any_batch() -> None:
    logits = make_logits(7)
    samplings = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_p=0.8),
        SamplingParams(seed=3, top_k=7, temperature=1.4),
        SamplingParams(seed=4, min_p=0.05),
        SamplingParams(seed=5, presence_penalty=1.0, top_p=0.99, top_k=599),
        GREEDY,
        SamplingParams(temperature=0.0, logprobs=2),
    ]
    slots = [4, 2, 0, 6, 1, 5, 3]
    together = sample(make_sampler(*samplings), slots, [7] * 7, logits)
    for row, slot in enumerate(slots):
        alone = sample_one(samplings[slot], logits[row, None], num_outputs=7)
        assert together[row] == alone


@pytest.mark.parametrize("scans", ["native"], indirect=True)
def test_the_native_kernels_sample_what_torch_samples(scans: Scans) -> None:
    """They report the same log probabilities, too."""
    vocab_size = 5000
    kinds = [
        GREEDY,
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        # More tokens than the first candidates are needed.
        SamplingParams(temperature=9.0, top_p=0.99, top_k=4000),
        SamplingParams(top_k=20, logprobs=5, presence_penalty=1.0),
        SamplingParams(temperature=0.0, logprobs=0, logit_bias=((7, 9.0),)),
        SamplingParams(min_p=0.1, logprobs=20),
    ]
    samplings = [replace(each, seed=i) for i, each in enumerate(kinds * 4)]
    slots = list(range(len(samplings)))
    each_way = [
        make_sampler(*samplings, vocab_size=vocab_size, scans=each)
        for each in (TorchScans(), scans)
    ]
    for index in range(8):
        logits = make_logits(len(slots), seed=index, vocab=vocab_size)
        expected, actual = (
            sample(sampler, slots, [index] * len(slots), logits) for sampler in each_way
        )
        assert actual == expected


def test_noise_goes_on_with_the_output_and_not_with_the_batch() -> None:
    logits = make_logits()
    sampling = SamplingParams(seed=8, temperature=3.0)
    sampler = make_sampler(sampling)
    tokens = [sample(sampler, [0], [i], logits)[0] for i in range(12)]
    assert len(set(tokens)) > 6
    # This is the start after a preemption: a slot begins with the earlier outputs.
    assert tokens[9] == sample_one(sampling, logits, num_outputs=9, outputs=(1,) * 9)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=0.6, top_k=4),
        SamplingParams(temperature=1.0, top_p=0.75),
        SamplingParams(temperature=1.5, top_k=6, top_p=0.9, min_p=0.1),
    ],
)
def test_frequencies_are_the_distribution(sampling: SamplingParams) -> None:
    """Over many seeds, tokens are as frequent as transformers' warpers say."""
    logits = torch.tensor([[2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -4.0]])
    num_draws = 2000
    sampler = Sampler(vocab_size=8, device=torch.device("cpu"))
    for slot in range(num_draws):
        sampler.start(make_start(sampling, slot, seed=slot))
    sampled = sample(
        sampler, list(range(num_draws)), [0] * num_draws, logits.expand(num_draws, -1)
    )
    counts = Counter(token.token_id for token in sampled)
    expected = warp(logits[0], sampling)
    for token_id, probability in enumerate(expected.tolist()):
        deviation = math.sqrt(probability * (1 - probability) / num_draws)
        assert abs(counts[token_id] / num_draws - probability) <= 5 * deviation


def warp(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the distribution, in vLLM's order: temperature, min_p, top_k, top_p."""
    probabilities = (logits / sampling.temperature).softmax(-1)
    probabilities[probabilities < sampling.min_p * probabilities.max()] = 0
    if sampling.top_k:
        probabilities[probabilities < probabilities.topk(sampling.top_k)[0][-1]] = 0
    probabilities /= probabilities.sum()
    ordered, token_ids = probabilities.sort(descending=True)
    probabilities[token_ids[ordered.cumsum(0) - ordered >= sampling.top_p]] = 0
    return probabilities / probabilities.sum()


def test_logit_bias() -> None:
    logits = make_logits()
    sampling = SamplingParams(temperature=0.0, logit_bias=((17, 100.0), (9, -100.0)))
    assert sample_one(sampling, logits).token_id == 17
    best = find_best(logits)
    banned = SamplingParams(temperature=0.0, logit_bias=((best, -100.0),))
    logits_without = logits.clone()
    logits_without[0, best] = -math.inf
    assert sample_one(banned, logits).token_id == find_best(logits_without)


def test_ids_beyond_the_vocabulary_are_never_sampled() -> None:
    logits = make_logits()
    sampling = SamplingParams(
        temperature=0.0, min_tokens=2, logit_bias=((VOCAB_SIZE, 100.0),)
    )
    sampled = sample_one(sampling, logits, stops=frozenset({VOCAB_SIZE, -1}))
    assert sampled.token_id == find_best(logits)


@pytest.mark.parametrize(
    "num_outputs, is_held_back", [(0, True), (1, True), (2, False)]
)
def test_min_tokens_holds_stop_tokens_back(
    num_outputs: int, is_held_back: bool
) -> None:
    logits = make_logits()
    best = find_best(logits)
    sampling = SamplingParams(temperature=0.0, min_tokens=2)
    sampled = sample_one(
        sampling, logits, num_outputs=num_outputs, stops=frozenset({best, 5})
    )
    assert (sampled.token_id != best) is is_held_back


@pytest.mark.parametrize("penalty", [0.5, 1.7, 100.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    """It covers the prompt, the output before the start, and later tokens."""
    sampling = SamplingParams(temperature=0.0, repetition_penalty=penalty)
    prompt, written = (3, 3, 8), [11]
    sampler = make_sampler(sampling, prompt=prompt, outputs=tuple(written))
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    logits = make_logits()
    for _ in range(12):
        context = torch.tensor([[*prompt, *written]])
        expected = find_best(processor(context, logits.clone()))
        assert sample(sampler, [0], [len(written)], logits)[0].token_id == expected
        written.append(expected)


@pytest.mark.parametrize(
    "presence, frequency",
    [(1.5, 0.0), (0.0, 0.7), (-0.3, 0.4), (1.0, 0.0), (0.0, 1.0)],
)
def test_presence_and_frequency_penalties_count_outputs(
    presence: float, frequency: float
) -> None:
    sampling = SamplingParams(
        temperature=0.0, presence_penalty=presence, frequency_penalty=frequency
    )
    written = [4, 4, 7]
    sampler = make_sampler(sampling, prompt=(20, 21), outputs=tuple(written))
    logits = make_logits()
    for _ in range(12):
        lowered = logits.clone()
        for token_id, count in Counter(written).items():
            lowered[0, token_id] -= presence + frequency * count
        expected = find_best(lowered)
        assert sample(sampler, [0], [len(written)], logits)[0].token_id == expected
        written.append(expected)


def test_penalties_of_many_slots_and_their_followers() -> None:
    """Counts belong to slots; the next sequence of a slot begins at zero."""
    penalized = SamplingParams(temperature=0.0, presence_penalty=2.0)
    sampler = make_sampler(*[penalized, GREEDY, penalized, penalized])
    logits = make_logits(4)
    first = sample(sampler, [3, 2, 1, 0], [0] * 4, logits)
    second = sample(sampler, [3, 2, 1, 0], [1] * 4, logits)
    lowered = logits.clone()
    for row in (0, 1, 3):
        lowered[row, first[row].token_id] -= 2.0
    assert [t.token_id for t in second] == lowered.argmax(-1).tolist()
    for slot in (0, 2):
        sampler.start(make_start(penalized, slot))
    third = sample(sampler, [0, 2], [0, 0], logits[[3, 1]])
    assert third == [first[3], first[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_those_of_the_raw_logits(dtype: torch.dtype) -> None:
    """Temperature, bias, top_k and bad words do not change them."""
    logits = make_logits().to(dtype)
    sampling = SamplingParams(
        **{"temperature": 0.7, "top_k": 3, "seed": 5, "logprobs": 4},
        **{"logit_bias": ((9, 100.0),), "bad_words": ((find_best(logits),), (3, 1))},
    )
    report = sample_one(sampling, logits).logprobs
    assert report is not None
    expected = logits[0].float().log_softmax(-1)
    values, token_ids = expected.topk(4)
    assert report.token_id == 9
    assert report.logprob == pytest.approx(float(expected[9]), abs=1e-5)
    assert report.rank == int((expected > expected[9]).sum()) + 1
    assert [token_id for token_id, _ in report.top] == token_ids.tolist()
    assert [p for _, p in report.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_only_requested_logprobs_are_reported() -> None:
    logits = make_logits(3)
    sampler = make_sampler(
        GREEDY,
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(temperature=0.0, logprobs=2),
    )
    plain, without_top, with_top = sample(sampler, [0, 1, 2], [0] * 3, logits)
    assert plain.logprobs is None
    assert without_top.logprobs is not None and without_top.logprobs.top == ()
    assert without_top.logprobs.rank == 1
    assert with_top.logprobs is not None and len(with_top.logprobs.top) == 2


def test_named_tokens_are_reported_in_place_of_the_likeliest() -> None:
    """They come behind the token itself, which comes once."""
    logits = make_logits(4)
    best = logits.argmax(-1).tolist()
    params = [
        SamplingParams(temperature=0.0, logprobs=2, logprob_token_ids=(7, 5)),
        SamplingParams(temperature=0.0, logprobs=0, logprob_token_ids=(9, best[1])),
        SamplingParams(temperature=0.0, logprobs=2),
        GREEDY,
    ]
    sampled = sample(make_sampler(*params), [0, 1, 2, 3], [0] * 4, logits)
    expected = logits.log_softmax(-1)
    for row, token_ids in enumerate(
        [[best[0], 7, 5], [best[1], 9], expected[2].topk(2).indices.tolist()]
    ):
        report = sampled[row].logprobs
        assert report is not None
        assert report.token_id == best[row]
        assert [token_id for token_id, _ in report.top] == token_ids
        values = [p for _, p in report.top]
        assert values == pytest.approx(expected[row, token_ids].tolist(), abs=1e-5)
    assert sampled[3].logprobs is None


def test_a_whole_vocabulary_is_reported_in_order() -> None:
    logits = make_logits(2)
    params = [SamplingParams(temperature=0.0, logprobs=n) for n in (-1, 1)]
    all_tokens, one = sample(make_sampler(*params), [0, 1], [0, 0], logits)
    assert all_tokens.logprobs is not None and one.logprobs is not None
    token_ids = [token_id for token_id, _ in all_tokens.logprobs.top]
    assert sorted(token_ids) == list(range(VOCAB_SIZE))
    values = [p for _, p in all_tokens.logprobs.top]
    expected = logits[0].log_softmax(-1)[token_ids].tolist()
    assert values == pytest.approx(expected, abs=1e-5)
    assert values == sorted(values, reverse=True)
    assert len(one.logprobs.top) == 1


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(), SamplingParams(top_p=0.5)]
)
def test_broken_logits_end_no_step(sampling: SamplingParams) -> None:
    logits = torch.full((1, VOCAB_SIZE), math.nan)
    first = sample_one(sampling, logits)
    assert 0 <= first.token_id < VOCAB_SIZE
    assert first == sample_one(sampling, logits)


def test_more_requested_logprobs_than_the_vocabulary_has_tokens() -> None:
    sampling = SamplingParams(top_k=50, logprobs=20, seed=1)
    sampler = make_sampler(sampling, vocab_size=5, prompt=(1,))
    (sampled,) = sample(sampler, [0], [0], make_logits(vocab=5))
    assert sampled.logprobs is not None and len(sampled.logprobs.top) == 5


def test_a_token_that_cannot_come_is_reported_as_vllm_reports_it() -> None:
    """The lowest log probability is -9999, and NaN counts as that: JSON has neither."""
    logits = make_logits(2)
    logits[0, :599] = -math.inf
    logits[1] = math.nan
    sampling = SamplingParams(temperature=0.0, logprobs=2)
    only, broken = sample(make_sampler(sampling, sampling), [0, 1], [0, 0], logits)
    assert only.logprobs is not None and broken.logprobs is not None
    assert [logprob for _, logprob in only.logprobs.top] == [0.0, -9999.0]
    assert broken.logprobs.logprob == -9999.0


@pytest.mark.parametrize("min_p, can_come", [(0.0, True), (0.9, False)])
def test_min_p_alone_leaves_out_unlikely_tokens(min_p: float, can_come: bool) -> None:
    logits = torch.tensor([[0.0, -0.2, -0.2, -0.2]])
    token_ids = {
        sample_one(
            SamplingParams(seed=seed, min_p=min_p), logits, vocab_size=4
        ).token_id
        for seed in range(40)
    }
    assert token_ids == ({0, 1, 2, 3} if can_come else {0})
