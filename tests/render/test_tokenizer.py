"""Truncation, and many threads at one tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.errors import ContextLengthExceeded, InvalidParameter
from trioserve.render import TokenizeOptions
from trioserve.render.text.tokenizer import TextTokenizer, cut
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_renderer

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Subject

Side = Literal["left", "right"]
sides = pytest.mark.parametrize("side", ["left", "right"])
TEXT = "Paris is the capital of France, and Rome is the capital of Italy."


def keep(ids: list[int], limit: int, side: Side) -> tuple[int, ...]:
    return tuple(ids[-limit:] if side == "left" else ids[:limit])


@sides
async def test_a_text_is_cut_to_tokens_of_its_beginning_or_end(
    subject: Subject, side: Side
) -> None:
    for limit in (1, 3, 16, 17, 18, 100):
        options = TokenizeOptions(
            truncate_to=limit, truncation_side=side, add_special_tokens=False
        )
        prompt = await subject.renderer.render_text(TEXT, options)
        ids = subject.encode(TEXT)
        assert prompt.token_ids == keep(ids, limit, side)
        assert prompt.text == subject.decode(list(prompt.token_ids)), limit


@sides
async def test_a_text_far_longer_than_the_model_can_be_cut(
    subject: Subject, side: Side
) -> None:
    text = f"{TEXT} " * 500
    options = TokenizeOptions(
        truncate_to=50, truncation_side=side, add_special_tokens=False
    )
    prompt = await subject.renderer.render_text(text, options)
    assert prompt.token_ids == keep(subject.encode(text), 50, side)
    with pytest.raises(ContextLengthExceeded):
        await subject.renderer.render_text(text)


async def test_a_text_cut_to_more_than_the_models_length_is_refused(
    byte_level: Subject,
) -> None:
    with pytest.raises(ContextLengthExceeded):
        await byte_level.renderer.render_text(
            TEXT * 1000, TokenizeOptions(truncate_to=100_000)
        )


@given(
    ids=st.lists(st.integers(0, 9), min_size=1).map(tuple),
    limit=st.none() | st.integers(1, 20),
    side=st.sampled_from(["left", "right"]),
)
def test_ids_are_cut_as_texts_are(
    ids: tuple[int, ...], limit: int | None, side: Side
) -> None:
    kept = cut(ids, TokenizeOptions(truncate_to=limit, truncation_side=side))
    assert kept == (ids if limit is None else keep(list(ids), limit, side))


async def test_a_chat_is_cut_on_request(byte_level: Subject) -> None:
    whole = await byte_level.renderer.render_chat([{"role": "user", "content": TEXT}])
    options = TokenizeOptions(add_special_tokens=False, truncate_to=9)
    chat = await byte_level.renderer.render_chat(
        [{"role": "user", "content": TEXT}], options=options
    )
    assert chat.token_ids == whole.token_ids[-9:]


async def test_a_bad_word_is_banned_with_its_space_and_without(
    byte_level: Subject,
) -> None:
    words = await byte_level.renderer.render_bad_words(["dog", " dog", "QX"])
    # The space of " dog" is part of its token; the space of " QX" is a token.
    texts = ("dog", " dog", "QX")
    assert words == tuple(tuple(byte_level.encode(text)) for text in texts)


@pytest.mark.parametrize("words", [[" "], ["a", ""], ["\ud83d"]])
async def test_a_bad_word_without_a_token_is_refused(
    byte_level: Subject, words: list[str]
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await byte_level.renderer.render_bad_words(words)
    assert caught.value.param == "bad_words"


@settings(max_examples=examples(30))
@given(texts=st.lists(st.sampled_from(["a", " b", "the dog", "\n"]), min_size=1))
def test_special_tokens_stand_around_parts_as_around_a_text(
    sentencepiece: Subject, texts: list[str]
) -> None:
    tokenizer = TextTokenizer(
        sentencepiece.oracle, sentencepiece.renderer.vocabulary, max_model_len=64
    )
    parts = tokenizer.encode_parts(texts, True, param="x")
    plain = tokenizer.encode_parts(texts, False, param="x")
    bos = 1
    assert parts == [(bos, *plain[0]), *plain[1:]]


async def test_a_part_that_is_no_text_is_refused(byte_level: Subject) -> None:
    tokenizer = TextTokenizer(
        byte_level.oracle, byte_level.renderer.vocabulary, max_model_len=64
    )
    with pytest.raises(InvalidParameter):
        tokenizer.encode_parts(["a", "\ud83d"], False, param="x")


async def test_sixteen_threads_never_find_the_tokenizer_borrowed(
    byte_level_folder: Path, byte_level: Subject
) -> None:
    """Texts, chats and ids, truncated or not, do not disturb each other in threads."""
    renderer = load_renderer(
        byte_level_folder, RenderConfig(renderer_num_workers=16), info=make_info()
    )
    ids = byte_level.encode(TEXT)

    async def hammer(number: int) -> None:
        for turn in range(6):
            limit = None if (number + turn) % 2 else number + 1
            options = TokenizeOptions(truncate_to=limit, add_special_tokens=False)
            prompt = await renderer.render_text(TEXT, options)
            assert list(prompt.token_ids) == ids[-(limit or 0) :]
            assert await renderer.detokenize(ids) == TEXT
            words = await renderer.render_bad_words(["Paris", "capital"])
            assert tuple(byte_level.encode("Paris")) in words
            chat = await renderer.render_chat(
                [{"role": "user", "content": TEXT}], options=options
            )
            assert limit is None or len(chat.token_ids) == limit

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(hammer, number)
    assert renderer.workers.statistics().busy == 0
