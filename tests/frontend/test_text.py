"""Renderer and engine together: an engine's tokens become text, up to a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer
import trio

from trioserve.config import RenderConfig
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.errors import InvalidParameter
from trioserve.frontend import TextEngine, TextParams
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor, make_info
from trioserve.testing.renderers import load_renderer
from trioserve.types.output import TextDelta
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

ANSWER = "The dog sleeps on and on."
MakeEngine = Callable[[Sequence[int]], TextEngine]


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))


@pytest.fixture
def answer_ids(tokenizer: Tokenizer) -> list[int]:
    return list(tokenizer.encode(ANSWER).ids)


@pytest.fixture
def make_engine(tokenizer_folder: Path) -> MakeEngine:
    """Return a function that builds an engine; its sequences repeat given tokens."""

    def make(token_ids: Sequence[int]) -> TextEngine:
        info = make_info(256)
        device = FakeDevice(
            lambda seed, index: token_ids[index % len(token_ids)], block_size=4
        )
        scheduler = Scheduler(
            num_blocks=256,
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=256,
        )
        core = LocalCore(scheduler, FakeExecutor(device.step), info=info)
        engine = TokenEngine(core, info=info, max_num_sequences=100, max_num_running=8)
        renderer = load_renderer(tokenizer_folder, RenderConfig(), info=info)
        return TextEngine(engine, renderer)

    return make


@pytest.fixture
async def engine(
    make_engine: MakeEngine,
    answer_ids: list[int],
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
) -> TextEngine:
    """An engine that runs and answers with ANSWER, over and over."""
    engine = make_engine(answer_ids)
    await start(engine, nursery)
    return engine


async def start(engine: TextEngine, nursery: trio.Nursery) -> None:
    await nursery.start(engine.engine.run)


async def generate(
    engine: TextEngine, text: TextParams | None = None, **sampling: object
) -> list[TextDelta]:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    prompt = Prompt(token_ids=(300, 301))
    async with engine.open_text([prompt], params, text or TextParams()) as stream:
        return await stream.collect()


async def test_all_tokens_become_text(
    engine: TextEngine, answer_ids: list[int]
) -> None:
    [whole] = await generate(engine, max_tokens=len(answer_ids))
    assert whole == TextDelta(
        text=ANSWER, token_ids=tuple(answer_ids), finish_reason="length"
    )


@pytest.mark.parametrize("includes", [False, True])
async def test_the_text_of_a_stop_token_is_shown_on_request_only(
    engine: TextEngine, answer_ids: list[int], includes: bool
) -> None:
    text = TextParams(include_stop_str_in_output=includes)
    [whole] = await generate(
        engine, text, max_tokens=50, stop_token_ids=(answer_ids[-1],)
    )
    assert whole.text == (ANSWER if includes else ANSWER[:-1])
    assert (whole.finish_reason, whole.stop_reason) == ("stop", answer_ids[-1])
    # Clients see the token even if its text is left out.
    assert list(whole.token_ids) == answer_ids


@pytest.mark.parametrize("includes", [False, True])
async def test_a_stop_string_ends_its_sequence_and_frees_it(
    engine: TextEngine, make_engine: MakeEngine, includes: bool
) -> None:
    text = TextParams(stop=("sleeps",), include_stop_str_in_output=includes)
    [whole] = await generate(engine, text, max_tokens=200)
    assert whole.text == ("The dog sleeps" if includes else "The dog ")
    assert (whole.finish_reason, whole.stop_reason) == ("stop", "sleeps")
    # Wait until the step in flight has ended.
    await trio.sleep(0.05)
    assert engine.engine.statistics() == make_engine([1]).engine.statistics()


async def test_a_stop_string_that_the_end_completes_is_the_reason(
    tokenizer: Tokenizer, make_engine: MakeEngine, nursery: trio.Nursery
) -> None:
    """The end turns half a character into U+FFFD, which completes this stop string."""
    token_ids = tokenizer.encode("a🙂").ids[:2]
    engine = make_engine(token_ids)
    await start(engine, nursery)
    [whole] = await generate(
        engine, TextParams(stop=("a\N{REPLACEMENT CHARACTER}",)), max_tokens=2
    )
    assert whole == TextDelta(
        token_ids=tuple(token_ids),
        finish_reason="stop",
        stop_reason="a\N{REPLACEMENT CHARACTER}",
    )


async def test_held_back_text_is_released_at_the_end(
    engine: TextEngine, answer_ids: list[int]
) -> None:
    [whole] = await generate(
        engine, TextParams(stop=("on.X",)), max_tokens=len(answer_ids)
    )
    assert (whole.text, whole.finish_reason) == (ANSWER, "length")


async def test_each_sequence_has_its_index(engine: TextEngine) -> None:
    answers = await generate(engine, max_tokens=2, n=3)
    assert [whole.index for whole in answers] == [0, 1, 2]


async def test_a_budget_of_reasoning_needs_a_chat(engine: TextEngine) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await generate(engine, TextParams(thinking_token_budget=5), max_tokens=2)
    assert caught.value.param == "thinking_token_budget"
