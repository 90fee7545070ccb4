"""Renderer workers are bounded and cancellable, and leave the loop free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import threading
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioserve.config import RenderConfig
from trioserve.errors import ContextLengthExceeded, InvalidParameter
from trioserve.render import ChatOptions, Renderer, RendererStatistics, TokenizeOptions
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_renderer

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Subject

MAX_MODEL_LEN = 256
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def renderer(byte_level_folder: Path) -> Renderer:
    """A renderer with two workers."""
    config = RenderConfig(renderer_num_workers=2)
    return load_renderer(byte_level_folder, config, info=make_info(MAX_MODEL_LEN))


class GatedMessages(Sequence[Mapping[str, object]]):
    """Messages that a renderer worker reads only once the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.num_readers = 0

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: object) -> Mapping[str, object]:
        raise NotImplementedError("they are read by iteration")

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        self.num_readers += 1
        # The timeout ends a test that fails before it opens the gate.
        assert self.gate.wait(timeout=20), "the gate stayed closed"
        yield USER


def idle(renderer: Renderer) -> RendererStatistics:
    workers = renderer.workers.statistics().workers
    return RendererStatistics(workers=workers, busy=0, waiting=0, abandoned=0)


async def test_text_becomes_a_prompt_that_remembers_it(byte_level: Subject) -> None:
    prompt = await byte_level.renderer.render_text(
        "Hello 你好", TokenizeOptions(cache_salt="salt")
    )
    assert prompt.token_ids == tuple(byte_level.encode("Hello 你好"))
    assert (prompt.text, prompt.cache_salt) == ("Hello 你好", "salt")


async def test_special_tokens_are_added_on_request(sentencepiece: Subject) -> None:
    with_bos = await sentencepiece.renderer.render_text("x")
    without = await sentencepiece.renderer.render_text(
        "x", TokenizeOptions(add_special_tokens=False)
    )
    assert with_bos.token_ids == (1, *without.token_ids)


async def test_no_more_renders_run_than_there_are_workers(renderer: Renderer) -> None:
    messages = GatedMessages()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(renderer.render_chat, messages)
            await wait_all_tasks_blocked()
            assert renderer.workers.statistics() == RendererStatistics(
                workers=2, busy=2, waiting=1, abandoned=0
            )
            messages.gate.set()
    assert messages.num_readers == 3
    assert renderer.workers.statistics() == idle(renderer)


async def test_a_cancelled_render_that_waits_is_never_made(renderer: Renderer) -> None:
    running, queued = GatedMessages(), GatedMessages()
    scope = trio.CancelScope()

    async def render_queued() -> None:
        with scope:
            await renderer.render_chat(queued)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(renderer.render_chat, running)
            nursery.start_soon(renderer.render_chat, running)
            await wait_all_tasks_blocked()
            nursery.start_soon(render_queued)
            await wait_all_tasks_blocked()
            assert renderer.workers.statistics().waiting == 1
            scope.cancel()
            await wait_all_tasks_blocked()
            assert scope.cancelled_caught
            assert renderer.workers.statistics().waiting == 0
            running.gate.set()
    assert queued.num_readers == 0
    assert renderer.workers.statistics() == idle(renderer)


async def test_a_cancelled_render_that_runs_is_waited_for(renderer: Renderer) -> None:
    messages = GatedMessages()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(renderer.render_chat, messages)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            assert renderer.workers.statistics().busy == 1
            messages.gate.set()
    assert messages.num_readers == 1
    assert renderer.workers.statistics() == idle(renderer)


async def test_a_template_that_does_not_end_is_the_requests_fault(
    renderer: Renderer, autojump_clock: MockClock
) -> None:
    messages = GatedMessages()
    with pytest.raises(InvalidParameter, match="longer than 10 s") as caught:
        await renderer.render_chat(messages)
    assert caught.value.param == "messages"
    messages.gate.set()


async def test_sixteen_renders_at_once_all_come_out_right(
    byte_level_folder: Path, byte_level: Subject
) -> None:
    config = RenderConfig(renderer_num_workers=16)
    renderer = load_renderer(byte_level_folder, config, info=make_info(MAX_MODEL_LEN))

    async def render(number: int) -> None:
        text = f"{number} the dog sleeps 🙂 " * (number % 4 + 1)
        for _ in range(10):
            prompt = await renderer.render_text(text)
            assert list(prompt.token_ids) == byte_level.encode(text)
            assert await renderer.detokenize(prompt.token_ids) == text
            chat = await renderer.render_chat([{**USER, "content": text}])
            assert chat.text is not None and text in chat.text
            assert list(chat.token_ids) == byte_level.encode(chat.text)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(render, number)
    assert renderer.workers.statistics() == idle(renderer)


async def test_a_prompt_must_leave_room_for_one_token(byte_level: Subject) -> None:
    # The vocabulary has no words in capital letters, so each is a token.
    longest = "QX" * ((MAX_MODEL_LEN - 1) // 2) + "Q"
    prompt = await byte_level.renderer.render_text(longest)
    assert len(prompt.token_ids) == MAX_MODEL_LEN - 1
    with pytest.raises(ContextLengthExceeded) as caught:
        await byte_level.renderer.render_text(longest + "X", param="input")
    assert (caught.value.num_tokens, caught.value.param) == (MAX_MODEL_LEN, "input")


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_a_conversation_that_is_too_long_is_refused(
    byte_level: Subject, role: str
) -> None:
    message = {"role": role, "content": "QX" * MAX_MODEL_LEN}
    with pytest.raises(ContextLengthExceeded) as caught:
        await byte_level.renderer.render_chat([message])
    assert caught.value.param == "messages"


async def test_a_text_that_is_far_too_long_is_refused_before_it_is_read(
    byte_level: Subject,
) -> None:
    # Reading the text would find the lone surrogates.
    text = "\ud83d" * 1_000_000
    renderer = byte_level.renderer
    with pytest.raises(ContextLengthExceeded) as caught:
        await renderer.render_text(text)
    assert caught.value.num_tokens >= MAX_MODEL_LEN
    # The template does not see it, either: an empty message cannot be continued.
    messages = [{**USER, "content": text}, {"role": "assistant", "content": ""}]
    with pytest.raises(ContextLengthExceeded):
        await renderer.render_chat(
            messages,
            ChatOptions(add_generation_prompt=True, continue_final_message=True),
        )


@pytest.mark.parametrize("text", ["", "a\ud83d", "\udc00"])
async def test_a_string_that_is_no_text_is_refused(
    byte_level: Subject, text: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await byte_level.renderer.render_text(text, param="input")
    assert caught.value.param == "input"


async def test_whole_texts_are_decoded_with_their_special_tokens(
    byte_level: Subject,
) -> None:
    renderer = byte_level.renderer
    ids = byte_level.encode("a<|im_end|>b")
    assert await renderer.detokenize(ids) == "a<|im_end|>b"
    assert await renderer.detokenize(ids, skip_special_tokens=True) == "ab"
    assert await renderer.detokenize(()) == ""


@pytest.mark.parametrize("token_id", [-1, 512, 2**40])
async def test_an_id_that_is_no_token_is_not_decoded(
    byte_level: Subject, token_id: int
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await byte_level.renderer.detokenize([1, token_id])
    assert caught.value.param == "tokens"
