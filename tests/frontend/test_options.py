"""The options of a text: bounds, budgets of reasoning, plug-ins, the Python API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.errors import InvalidParameter
from trioserve.frontend import TextEngine, TextParams
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor, make_info
from trioserve.testing.renderers import load_renderer
from trioserve.types.logits import LogitsProcessor, LogitsRow
from trioserve.types.plan import SlotStart
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import ReasoningBudget, SamplingParams

# TextParams.


@pytest.mark.parametrize(
    "text",
    [
        {"stop": ("x",) * 32},
        {"stop": ("x" * 1024,)},
        {"thinking_token_budget": 0},
        {"thinking_token_budget": 2**31 - 1},
    ],
)
def test_values_at_the_bounds_are_accepted(text: dict[str, Any]) -> None:
    params = TextParams(**text)
    params.check_stop()
    assert {name: getattr(params, name) for name in text} == text


@pytest.mark.parametrize(
    "text, message",
    [
        ({"stop": ("x",) * 33}, "stop: at most 32 are possible"),
        ({"stop": ("x" * 1025,)}, "stop: each must have 1 to 1024 characters"),
        ({"stop": ("",)}, "stop: each must have 1 to 1024 characters"),
        ({"stop": ("x" * 820,) * 5}, "stop: at most 4096 characters in all are taken"),
        (
            {"thinking_token_budget": -1},
            "thinking_token_budget: must be between 0 and 2147483647, got -1",
        ),
        (
            {"thinking_token_budget": 2**31},
            "thinking_token_budget: must be between 0 and 2147483647, got 2147483648",
        ),
    ],
)
def test_values_beyond_the_bounds_are_refused_by_name(
    text: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        TextParams(**text).check_stop()
    assert str(caught.value) == message


# Options that reach the device.


class Sized(LogitsProcessor):
    """A plug-in that takes a size."""

    name = "sized"

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        if "size" not in arguments:
            raise ValueError(arguments.get("message", ""))
        return arguments["size"]

    def apply(self, logits: Any, rows: Sequence[LogitsRow]) -> None:
        raise AssertionError("the fake device asks no plug-in")


class Bench:
    """A text engine over a fake device that records its plans."""

    def __init__(self, folder: Path, parser: str) -> None:
        info = make_info(256)
        self.device = FakeDevice(block_size=4)
        scheduler = Scheduler(
            num_blocks=256,
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=256,
        )
        core = LocalCore(scheduler, FakeExecutor(self.device.step), info=info)
        self.engine = TokenEngine(
            core, info=info, max_num_sequences=100, max_num_running=8
        )
        config = RenderConfig(reasoning_parser=parser)  # type: ignore[arg-type]
        renderer = load_renderer(folder, config, info=info)
        self.text = TextEngine(self.engine, renderer, [Sized])

    @property
    def start(self) -> SlotStart:
        """The only sequence in the device's plans."""
        [start] = [start for plan in self.device.plans for start in plan.starts]
        return start


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(tokenizer_folder: Path) -> MakeBench:
    return lambda parser="qwen3": Bench(tokenizer_folder, parser)


async def ask(bench: Bench, *endings: str, budget: int = 5, **sampling: object) -> None:
    """Generate one token for each prompt, as for chats."""
    prompts = [Prompt(token_ids=(300,), text=ending) for ending in endings]
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.engine.run)
        async with bench.text.open_text(
            prompts,
            SamplingParams(max_tokens=1, **sampling),  # type: ignore[arg-type]
            TextParams(thinking_token_budget=budget),
            splits_reasoning=True,
        ) as stream:
            assert stream.splits_reasoning
            await stream.collect()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ending, is_open", [("", False), ("<think>\n", True)])
async def test_the_device_gets_a_chats_budget_of_reasoning(
    make_bench: MakeBench, autojump_clock: object, ending: str, is_open: bool
) -> None:
    bench = make_bench()
    await ask(bench, ending)
    tags = bench.text.renderer.reasoning
    assert tags is not None
    assert bench.start.sampling.reasoning_budget == ReasoningBudget(
        num_tokens=5,
        start_token_ids=tags.start_token_ids,
        end_token_ids=tags.end_token_ids,
        is_open=is_open,
    )


async def test_a_prompt_that_has_ended_the_reasoning_needs_no_budget(
    make_bench: MakeBench, autojump_clock: object
) -> None:
    bench = make_bench()
    await ask(bench, "<think>\n\n</think>\n\n")
    assert bench.start.sampling.reasoning_budget is None


async def test_prompts_that_end_differently_cannot_share_a_budget(
    make_bench: MakeBench,
) -> None:
    text = make_bench().text
    prompts = [Prompt(token_ids=(300,), text=ending) for ending in ("", "<think>\n")]
    with pytest.raises(ValueError, match="the prompts of one budget must end alike"):
        async with text.open_text(
            prompts,
            SamplingParams(),
            TextParams(thinking_token_budget=5),
            splits_reasoning=True,
        ):
            pass


async def test_a_budget_needs_a_parser(make_bench: MakeBench) -> None:
    text = make_bench("none").text
    with pytest.raises(InvalidParameter) as caught:
        async with text.open_text(
            [Prompt(token_ids=(300,))],
            SamplingParams(),
            TextParams(thinking_token_budget=5),
            splits_reasoning=True,
        ):
            pass
    assert str(caught.value) == "thinking_token_budget: needs --reasoning-parser"


async def test_no_reasoning_is_split_off_without_a_parser(
    make_bench: MakeBench, nursery: trio.Nursery
) -> None:
    bench = make_bench("none")
    await nursery.start(bench.engine.run)
    async with bench.text.open_text(
        [Prompt(token_ids=(300,))],
        SamplingParams(max_tokens=1),
        TextParams(),
        splits_reasoning=True,
    ) as stream:
        assert not stream.splits_reasoning


@pytest.mark.parametrize(
    "arguments, reason", [({"message": "too big"}, "too big"), ({}, "wrong arguments")]
)
async def test_arguments_that_a_plug_in_refuses_are_refused_by_its_name(
    make_bench: MakeBench, arguments: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        async with make_bench().text.open_text(
            [Prompt(token_ids=(300,))],
            SamplingParams(logits_processors=(("sized", arguments),)),
            TextParams(),
        ):
            pass
    assert str(caught.value) == f"logits_processors.sized: {reason}"


# The Python API.


async def test_options_of_a_program_reach_the_device_and_the_text(
    make_bench: MakeBench, nursery: trio.Nursery
) -> None:
    bench = make_bench()
    await nursery.start(bench.engine.run)
    async with bench.text.open_completion(
        "Hello", max_tokens=3, temperature=0.5, skip_special_tokens=False
    ) as stream:
        [whole] = await stream.collect()
    assert bench.start.sampling == SamplingParams(max_tokens=3, temperature=0.5)
    assert len(whole.token_ids) == 3
    renderer = bench.text.renderer
    assert (
        bench.start.prompt_token_ids == (await renderer.render_text("Hello")).token_ids
    )


async def test_a_chat_of_a_program_may_bound_its_reasoning(
    make_bench: MakeBench, nursery: trio.Nursery
) -> None:
    bench = make_bench()
    await nursery.start(bench.engine.run)
    async with bench.text.open_chat(
        [{"role": "user", "content": "Hello"}], max_tokens=1, thinking_token_budget=7
    ) as stream:
        await stream.collect()
    assert bench.start.sampling.reasoning_budget is not None
    assert bench.start.sampling.reasoning_budget.num_tokens == 7


async def test_the_priority_of_a_program_reaches_the_engine(
    make_bench: MakeBench,
) -> None:
    """The engine refuses it, because its scheduling policy has no priorities."""
    with pytest.raises(InvalidParameter, match="--scheduling-policy") as caught:
        async with make_bench().text.open_completion("Hello", priority=2):
            pass
    assert caught.value.param == "priority"


async def test_options_that_do_not_exist_are_refused(make_bench: MakeBench) -> None:
    text = make_bench().text
    with pytest.raises(TypeError, match="warmth"):
        async with text.open_completion("Hello", warmth=1.0):
            pass
    with pytest.raises(InvalidParameter, match="^stop: each must have"):
        async with text.open_completion("Hello", stop=("",)):
            pass
    with pytest.raises(TypeError, match="priority must be an int"):
        async with text.open_completion("Hello", priority="high"):
            pass
