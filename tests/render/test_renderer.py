"""Texts become prompts that fit the model, and ids become texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trioserve.errors import ContextLengthExceeded, InvalidParameter
from trioserve.render import ChatOptions, TokenizeOptions

if TYPE_CHECKING:
    from conftest import Subject

MAX_MODEL_LEN = 256
USER = {"role": "user", "content": "Hi"}


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
