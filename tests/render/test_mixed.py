"""Chats with images and embeddings: the positions of their vectors."""

from __future__ import annotations

import base64
from collections.abc import Callable
import io
from pathlib import Path
from typing import Any

from PIL import Image
import pytest
from safetensors.torch import save
import torch
import trio

from trioserve.config import MediaConfig, RenderConfig
from trioserve.errors import InvalidParameter, NotSupported
from trioserve.render import (
    ChatOptions,
    Renderer,
    TokenizeOptions,
    load_text_parts,
    make_renderer,
)
from trioserve.testing.fake_device import make_info
from trioserve.testing.processors import VOCAB_SIZE
from trioserve.testing.renderers import load_renderer
from trioserve.types.prompt import NO_TOKEN, EmbeddedInput

HIDDEN_SIZE = 8
KINDS = ["qwen2_vl", "smolvlm", "llava", "internvl", "mistral3"]

Load = Callable[..., Renderer]


@pytest.fixture
def load(processor_folders: dict[str, Path]) -> Load:
    def load(kind: str = "qwen2_vl", **media: Any) -> Renderer:
        return load_renderer(
            processor_folders[kind],
            RenderConfig(enable_prompt_embeds=True),
            info=make_info(1024, vocab_size=VOCAB_SIZE, takes_images=True),
            media=MediaConfig(**media),
        )

    return load


def draw(color: str = "red", size: tuple[int, int] = (56, 84)) -> Image.Image:
    image = Image.new("RGB", size, color)
    image.paste("blue", (0, 0, size[0] // 2, size[1] // 3))
    return image


def image_part(image: Image.Image) -> dict[str, object]:
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def embeds_part(vectors: torch.Tensor) -> dict[str, object]:
    payload = base64.b64encode(save({"x": vectors})).decode()
    return {"type": "prompt_embeds", "prompt_embeds": payload}


def text_part(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def user(*parts: dict[str, object]) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(parts)}]


def positions(item: EmbeddedInput) -> list[int]:
    return [i for begin, end in item.runs for i in range(begin, end)]


@pytest.mark.parametrize("kind", KINDS)
async def test_images_stand_where_the_processor_puts_their_tokens(
    load: Load, kind: str
) -> None:
    renderer = load(kind)
    first, second = image_part(draw()), image_part(draw("green", (150, 70)))
    prompt = await renderer.render_chat(
        user(text_part("What is "), first, text_part(" beside "), second)
    )
    assert renderer.images is not None and prompt.text is not None
    images = [
        await renderer.images.render(part["image_url"]["url"], param="")  # type: ignore[index]
        for part in (first, second)
    ]
    token = renderer.images.token
    before, between, after = prompt.text.split(token.text)
    text = f"{before}{images[0].replacement}{between}{images[1].replacement}{after}"
    options = TokenizeOptions(add_special_tokens=False)
    assert prompt.token_ids == (await renderer.render_text(text, options)).token_ids
    places = [i for i, t in enumerate(prompt.token_ids) if t == token.vector_id]
    assert [p for item in prompt.embedded for p in positions(item)] == places
    for item, image in zip(prompt.embedded, images, strict=True):
        assert item.num_vectors == image.num_vectors
        assert item.keys == image.key * image.num_vectors
        assert item.tensors is image.tensors


async def test_vectors_stand_between_the_tokens_around_them(load: Load) -> None:
    renderer = load()
    vectors = torch.arange(24, dtype=torch.float32).reshape(3, HIDDEN_SIZE)
    marked = await renderer.render_chat(
        user(text_part("before"), embeds_part(vectors), text_part("after"))
    )
    begin, end = marked.embedded[0].runs[0]
    assert marked.token_ids[begin:end] == (NO_TOKEN,) * 3
    (item,) = marked.embedded
    tensor = item.tensors["embeds"]
    assert tensor.shape == (3, HIDDEN_SIZE)
    assert bytes(tensor.data) == vectors.numpy().tobytes()
    plain = await renderer.render_chat(user(text_part("before"), text_part("after")))
    assert plain.text is not None
    head, tail = plain.text.split("before\nafter")
    for ids, text in (
        (marked.token_ids[:begin], f"{head}before\n"),
        (marked.token_ids[end:], f"\nafter{tail}"),
    ):
        options = TokenizeOptions(add_special_tokens=False)
        assert ids == (await renderer.render_text(text, options)).token_ids


async def test_images_and_vectors_in_one_chat_are_in_the_order_of_positions(
    load: Load,
) -> None:
    one, two = torch.zeros((2, HIDDEN_SIZE)), torch.ones((5, HIDDEN_SIZE))
    prompt = await load().render_chat(
        user(embeds_part(one), image_part(draw()), embeds_part(two), text_part("x"))
    )
    kinds = [(item.kind, item.num_vectors) for item in prompt.embedded]
    assert kinds == [("embeds", 2), ("image", 6), ("embeds", 5)]
    starts = [item.runs[0][0] for item in prompt.embedded]
    assert starts == sorted(starts)


async def test_a_prompt_of_nothing_but_vectors(load: Load) -> None:
    vectors = torch.ones((4, HIDDEN_SIZE))
    payload = base64.b64encode(save({"x": vectors}))
    prompt = await load().render_embeds(memoryview(payload), cache_salt="s")
    assert prompt.token_ids == (NO_TOKEN,) * 4
    assert prompt.embedded[0].runs == ((0, 4),)
    assert prompt.cache_salt == "s"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([text_part("<|image_pad|>"), image_part(draw())], "messages"),
        (
            [text_part("a"), {"type": "image_url", "image_url": {"url": "data:x"}}],
            "messages[0].content[1].image_url",
        ),
        (
            [{"type": "prompt_embeds", "prompt_embeds": "AAAA"}],
            "messages[0].content[0].prompt_embeds",
        ),
        ([image_part(draw())] * 3, "messages[0].content[2].image_url"),
    ],
    ids=["placeholder", "url", "embeds", "too many"],
)
async def test_the_error_names_the_wrong_part(
    load: Load, content: list[dict[str, object]], param: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await load(max_images=2).render_chat(user(*content))
    assert caught.value.param == param


async def test_a_placeholder_in_a_chat_without_images_is_just_a_token(
    load: Load,
) -> None:
    prompt = await load().render_chat(user(text_part("<|image_pad|>")))
    assert prompt.embedded == ()


@pytest.mark.parametrize(
    "template",
    ["no part is shown", "{% for m in messages * 2 %}{{ m.content }}{% endfor %}"],
)
async def test_a_template_that_hides_or_repeats_vectors_is_refused(
    processor_folders: dict[str, Path], template: str
) -> None:
    renderer = load_renderer(
        processor_folders["qwen2_vl"],
        RenderConfig(enable_prompt_embeds=True),
        info=make_info(),
        chat_template=template,
    )
    with pytest.raises(InvalidParameter, match="each part of type prompt_embeds once"):
        await renderer.render_chat(user(embeds_part(torch.ones((2, HIDDEN_SIZE)))))


async def test_a_model_that_sees_nothing_says_so(
    processor_folders: dict[str, Path],
) -> None:
    renderer = load_renderer(
        processor_folders["qwen2_vl"], RenderConfig(), info=make_info()
    )
    with pytest.raises(NotSupported, match="sees no images") as caught:
        await renderer.render_chat(user(image_part(draw())))
    assert caught.value.param == "messages[0].content[0].image_url"


async def test_a_model_that_is_served_for_text_tells_the_reason(
    processor_folders: dict[str, Path],
) -> None:
    parts = load_text_parts(
        processor_folders["qwen2_vl"],
        RenderConfig(),
        media=MediaConfig(),
        image_refusal="the server was started with --text-only",
        chat_template=None,
    )
    renderer = make_renderer(parts, RenderConfig(), info=make_info())
    with pytest.raises(NotSupported, match="started with --text-only") as caught:
        await renderer.render_chat(user(image_part(draw())))
    assert caught.value.param == "messages[0].content[0].image_url"


async def test_images_and_vectors_are_not_cut(load: Load) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await load().render_chat(
            user(image_part(draw())),
            options=TokenizeOptions(truncate_to=3, add_special_tokens=False),
        )
    assert caught.value.param == "truncate_prompt_tokens"


async def test_a_tensor_that_is_wrong_cancels_its_siblings(load: Load) -> None:
    """After a request's answer, none of its other tensors keeps a worker busy."""
    renderer = load()
    good = embeds_part(torch.ones((200, HIDDEN_SIZE)))
    bad = {"type": "prompt_embeds", "prompt_embeds": "?"}
    with trio.fail_after(30):
        with pytest.raises(InvalidParameter):
            await renderer.render_chat(user(bad, *[good] * 50), ChatOptions())
    assert renderer.workers.statistics().busy == 0
    assert renderer.workers.statistics().waiting == 0
