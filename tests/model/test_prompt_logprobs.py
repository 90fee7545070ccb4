"""Log probabilities of a prompt's own tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trioserve.types.output import TokenLogprobs
from trioserve.types.sampling import SamplingParams

from .planning import Planner, make_prompt


@pytest.mark.parametrize("chunk", [1000, 7, 1])
@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_prompt_logprobs_are_those_of_one_forward_pass(
    tiny_by_kernels: Callable[..., Any], model_type: str, chunk: int
) -> None:
    """Each prompt token except the first has one, in chunks of any size."""
    model = tiny_by_kernels(model_type)
    planner = Planner(model.loaded)
    sequence = planner.begin(
        make_prompt(18), sampling=SamplingParams(temperature=0.0, prompt_logprobs=3)
    )
    other = planner.begin(make_prompt(18, 1), slot=1)
    reports: list[TokenLogprobs] = []
    while not sequence.outputs:
        num_tokens = min(chunk, 18 - sequence.num_computed)
        result = planner.step((other, num_tokens), (sequence, num_tokens))
        assert set(result.prompt_logprobs) <= {sequence.slot}
        reports += result.prompt_logprobs.get(sequence.slot, ())
    assert [report.token_id for report in reports] == sequence.prompt[1:]
    expected = model.logits(sequence.prompt).log_softmax(-1)
    for report, row in zip(reports, expected):
        values, token_ids = row.topk(3)
        target = row[report.token_id]
        assert report.logprob == pytest.approx(float(target), abs=1e-4)
        assert report.rank == int((row > target).sum()) + 1
        assert [token_id for token_id, _ in report.top] == token_ids.tolist()
        assert [p for _, p in report.top] == pytest.approx(values.tolist(), abs=1e-4)
    model.check(sequence)


def test_a_prompts_tokens_may_have_the_whole_vocabulary(
    tiny_by_kernels: Callable[..., Any],
) -> None:
    model = tiny_by_kernels("llama")
    planner = Planner(model.loaded)
    sequence = planner.begin(
        make_prompt(4), sampling=SamplingParams(temperature=0.0, prompt_logprobs=-1)
    )
    reports = planner.step((sequence, 4)).prompt_logprobs[sequence.slot]
    expected = model.logits(sequence.prompt).log_softmax(-1)
    for report, row in zip(reports, expected, strict=False):
        assert len(report.top) == len(row)
        for token_id, logprob in report.top[:50]:
            assert logprob == pytest.approx(float(row[token_id]), abs=1e-4)


def test_outputs_that_are_computed_again_are_not_the_prompt(
    tiny_by_kernels: Callable[..., Any],
) -> None:
    planner = Planner(tiny_by_kernels("llama").loaded)
    sequence = planner.begin(
        make_prompt(5), sampling=SamplingParams(temperature=0.0, prompt_logprobs=0)
    )
    planner.run(sequence, num_tokens=4)
    planner.preempt(sequence, slot=3)
    result = planner.step((sequence, sequence.num_tokens))
    reports = result.prompt_logprobs[3]
    assert [report.token_id for report in reports] == sequence.prompt[1:]
    assert all(report.top == () for report in reports)


def test_prompts_longer_than_one_conversion(
    tiny_by_kernels: Callable[..., Any],
) -> None:
    model = tiny_by_kernels("gpt_neox")
    planner = Planner(model.loaded, num_blocks=200, max_model_len=700)
    sequence = planner.begin(
        make_prompt(600), sampling=SamplingParams(temperature=0.0, prompt_logprobs=1)
    )
    reports = planner.step((sequence, 600)).prompt_logprobs[0]
    assert [report.token_id for report in reports] == sequence.prompt[1:]
