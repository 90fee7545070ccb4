"""Steps can be launched before the earlier ones are finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import random
from typing import Any

import pytest
import torch

from trioserve.model.runner import ModelRunner
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.types.ids import SequenceId
from trioserve.types.logits import LogitsProcessor, LogitsRow
from trioserve.types.output import TokenLogprobs
from trioserve.types.sampling import ReasoningBudget, SamplingParams

from .planning import run_steps

BLOCK_SIZE = 4
GREEDY = SamplingParams(temperature=0.0, max_tokens=10)


class NoRepeat(LogitsProcessor):
    """Forbids pairs of tokens that the output already has; needs the whole output."""

    name = "no_repeat"
    needs_output_token_ids = True

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        for scores, row in zip(logits, rows):
            outputs = row.output_token_ids
            assert outputs is not None
            assert len(outputs) == row.num_output_tokens
            assert min(outputs, default=0) >= 0, "a placeholder is not a token"
            for before, after in zip(outputs, outputs[1:]):
                if before == outputs[-1]:
                    scores[after] = -torch.inf


class Counting(LogitsProcessor):
    """Needs only the number of output tokens, and favours that number modulo 3."""

    name = "counting"

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        for scores, row in zip(logits, rows):
            assert row.output_token_ids is None
            scores[row.num_output_tokens % 3] += 3.0


def make(**changes: Any) -> SamplingParams:
    return dataclasses.replace(GREEDY, **changes)


EVERYTHING = [
    make(), make(max_tokens=1), make(max_tokens=2),
    make(temperature=0.8, top_p=0.9),
    make(temperature=1.0),
    make(temperature=1.3, top_k=5, min_p=0.05),
    make(repetition_penalty=1.7),
    make(presence_penalty=1.5, frequency_penalty=0.7),
    make(temperature=1.0, frequency_penalty=2.0),
    make(temperature=1.0, stop_token_ids=tuple(range(3, 20))),
    make(temperature=1.0, stop_token_ids=tuple(range(3, 60)), min_tokens=7),
    make(temperature=1.0, stop_token_ids=tuple(range(97)), min_tokens=9),
    make(max_tokens=7),
    make(bad_words=tuple((a, b) for a in range(97) for b in (7, 8))[:256]),
    make(bad_words=((5,), (6, 7, 8), (9, 10))),
    make(temperature=1.0, bad_words=tuple((a, a) for a in range(97))),
    make(logprobs=3),
    make(temperature=1.0, logprobs=0, logit_bias=((9, 4.0),)),
    make(prompt_logprobs=1),
    make(reasoning_budget=ReasoningBudget(
        num_tokens=5, start_token_ids=(90,), end_token_ids=(91, 92), is_open=True
    )),
    make(temperature=1.0, reasoning_budget=ReasoningBudget(
        num_tokens=0, start_token_ids=(3, 4), end_token_ids=(5,), is_open=True
    )),
    make(temperature=1.0, logit_bias=((90, 8.0),), reasoning_budget=ReasoningBudget(
        num_tokens=2, start_token_ids=(90,), end_token_ids=(91,)
    )),
    make(logits_processors=(("no_repeat", {}),)),
    make(logits_processors=(("counting", {}), ("no_repeat", {}))),
    make(temperature=1.0, logits_processors=(("counting", {}),)),
]  # fmt: skip
# Some of each kind.
SOME = EVERYTHING[::2]


@dataclasses.dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs]
    finish_reason: str | None


def answer_all(
    model: Any,
    samplings: Sequence[SamplingParams],
    *,
    depth: int,
    num_blocks: int,
    budget: int = 16,
    runner_type: type[ModelRunner] = ModelRunner,
    is_warm: bool = False,
) -> tuple[dict[int, Answer], int]:
    """Run a scheduler and a runner as the engine does; also count the preemptions.

    Args:
      is_warm: on a GPU, decodes run in graphs.
    """
    scheduler = Scheduler(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=6,
        max_num_batched_tokens=budget,
        max_model_len=40,
    )
    runner = runner_type(
        model.loaded,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=6,
        max_model_len=40,
        logits_processors=(NoRepeat, Counting),
    )
    if is_warm:
        runner.warm_up()
    rng = random.Random(5)
    for number, sampling in enumerate(samplings):
        prompt = rng.choices(range(3, 97), k=rng.choice((1, 3, 8, 23)))
        stops = frozenset(sampling.stop_token_ids)
        scheduler.add(
            Scheduled(
                sequence_id=SequenceId(number),
                prompt_token_ids=tuple(prompt),
                sampling=dataclasses.replace(sampling, stop_token_ids=tuple(stops)),
                seed=number,
                arrival=number,
            )
        )
    answers = {n: Answer([], [], [], None) for n in range(len(samplings))}
    for output in run_steps(scheduler, runner.launch, depth=depth):
        answer = answers[output.sequence_id]
        answer.token_ids.extend(output.token_ids)
        answer.logprobs.extend(output.logprobs)
        answer.prompt_logprobs.extend(output.prompt_logprobs)
        if output.finish_reason is not None:
            answers[output.sequence_id] = dataclasses.replace(
                answer, finish_reason=output.finish_reason
            )
    return answers, scheduler.counters().num_preemptions


def assert_alike(ours: list[TokenLogprobs], theirs: list[TokenLogprobs]) -> None:
    """Assert that reports are equal except for rounding in batches of another size."""
    assert [report.token_id for report in ours] == [r.token_id for r in theirs]
    expected = pytest.approx([report.logprob for report in theirs], abs=1e-4)
    assert [report.logprob for report in ours] == expected


def assert_same(ours: dict[int, Answer], theirs: dict[int, Answer]) -> None:
    for number, expected in theirs.items():
        answer = ours[number]
        assert answer.token_ids == expected.token_ids
        assert answer.finish_reason == expected.finish_reason is not None
        assert_alike(answer.logprobs, expected.logprobs)
        assert_alike(answer.prompt_logprobs, expected.prompt_logprobs)


DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_output_is_the_same_with_steps_launched_ahead(
    tiny: Callable[..., Any], device: str
) -> None:
    model = tiny("llama", device)
    expected, _ = answer_all(model, EVERYTHING, depth=1, num_blocks=96)
    # A server has two steps in flight, and three while they are quick.
    for depth, num_blocks in ((2, 10), (3, 96)):
        answers, num_preemptions = answer_all(
            model,
            EVERYTHING,
            depth=depth,
            num_blocks=num_blocks,
            is_warm=device == "cuda",
        )
        assert (num_preemptions > 0) == (num_blocks == 10)
        assert_same(answers, expected)


def test_output_equals_that_of_generate(tiny: Callable[..., Any]) -> None:
    """The last two sequences get the slots of others."""
    model = tiny("llama")
    answers, num_preemptions = answer_all(model, [GREEDY] * 8, depth=2, num_blocks=10)
    assert num_preemptions > 0
    rng = random.Random(5)
    for answer in answers.values():
        prompt = rng.choices(range(3, 97), k=rng.choice((1, 3, 8, 23)))
        model.check_behind(prompt, answer.token_ids)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mix", [[GREEDY] * 7, EVERYTHING[1::2]], ids=["greedy", "all"])
def test_nothing_on_a_steps_way_waits_for_the_device(
    tiny: Callable[..., Any],
    no_sync: Callable[..., Any],
    mix: list[SamplingParams],
    device: str,
) -> None:
    """Otherwise a GPU would be idle until the next step is launched."""
    samplings = [
        # The other plug-in, no_repeat, declares that it waits for the sampled tokens.
        (
            dataclasses.replace(each, logits_processors=(("counting", {}),))
            if each.logits_processors
            else each
        )
        for each in mix
    ]
    launch = ModelRunner.launch

    class Watched(ModelRunner):
        def launch(self, plan: Any) -> Any:
            with no_sync():
                return launch(self, plan)

    answers, num_preemptions = answer_all(
        tiny("llama", device),
        samplings,
        depth=2,
        num_blocks=10,
        runner_type=Watched,
        is_warm=device == "cuda",
    )
    assert num_preemptions > 0
    assert all(answer.token_ids for answer in answers.values())
