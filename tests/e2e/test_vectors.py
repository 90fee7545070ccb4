"""Embeddings and images through the official client, with generate() as the oracle."""

from __future__ import annotations

import base64
from collections.abc import Callable
import io
from pathlib import Path
import time
from typing import Any
import urllib.request

from PIL import Image
import openai
import pytest
import torch

from trioserve.testing.models import save_tiny_vision_model
from trioserve.testing.processors import save_tiny_processor

pytestmark = pytest.mark.slow

NAME = "tiny-vision"


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_processor("qwen2_vl", tmp_path_factory.mktemp("model") / NAME)
    return save_tiny_vision_model("qwen2_vl", folder)


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Any], vision_folder: Path) -> Any:
    return start_server(
        *(str(vision_folder), "--kv-cache-memory", "64MiB", "--num-threads", "1"),
        *("--enable-prompt-embeds", "--renderer-processes", "1"),
        *("--allowed-local-media-path", str(vision_folder)),
    )


@pytest.fixture(scope="module")
def model(vision_folder: Path) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(vision_folder).eval()


@pytest.fixture(scope="module")
def tokenizer(vision_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(vision_folder)


def draw(color: str) -> Image.Image:
    image = Image.new("RGB", (84, 56), color)
    image.paste("white", (10, 10, 40, 40))
    return image


def encode_image(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def encode_tensor(tensor: torch.Tensor) -> str:
    file = io.BytesIO()
    torch.save(tensor, file)
    return base64.b64encode(file.getvalue()).decode()


def show(*urls: str) -> list[Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "See"}, *parts]}]


def test_an_answer_about_images_equals_generate(
    client: openai.OpenAI, vision_folder: Path, model: Any, tokenizer: Any
) -> None:
    from transformers import AutoImageProcessor, Qwen2VLProcessor

    class ImagesOnly(Qwen2VLProcessor):
        """A processor without videos, which would need torchvision."""

        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return type(argument)

    processor = ImagesOnly(AutoImageProcessor.from_pretrained(vision_folder), tokenizer)
    images = [draw("red"), draw("green")]
    text = tokenizer.apply_chat_template(
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "See"}, *[{"type": "image"}] * 2],
            }
        ],
        add_generation_prompt=True,
        tokenize=False,
    )
    inputs = processor(text=[text], images=images, return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**inputs, do_sample=False, max_new_tokens=12)
    ids = output[0, inputs["input_ids"].shape[1] :]
    answer = client.chat.completions.create(
        model=NAME,
        messages=show(*map(encode_image, images)),
        max_tokens=12,
        temperature=0,
    )
    expected = tokenizer.decode(ids, skip_special_tokens=True)
    assert answer.choices[0].message.content == expected
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == inputs["input_ids"].shape[1]


def test_a_repeated_image_is_neither_prepared_nor_computed_again(
    client: openai.OpenAI, server: Any
) -> None:
    def read(name: str) -> float:
        with urllib.request.urlopen(f"{server.url}/metrics") as response:
            lines = response.read().decode().splitlines()
        (value,) = (line.split()[1] for line in lines if line.startswith(f"{name} "))
        return float(value)

    messages = show(encode_image(draw("purple")))
    queries = read("trioserve_mm_cache_queries_total")
    hits = read("trioserve_mm_cache_hits_total")
    cached = []
    for _ in range(2):
        answer = client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=1
        )
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        cached.append(0 if details is None else details.cached_tokens)
    assert read("trioserve_mm_cache_queries_total") == queries + 2
    assert read("trioserve_mm_cache_hits_total") == hits + 1
    assert cached[1] == 16 > cached[0]


def test_a_local_image_is_read_from_the_allowed_folder_only(
    client: openai.OpenAI, vision_folder: Path, tmp_path: Path
) -> None:
    for folder in (vision_folder, tmp_path):
        draw("red").save(folder / "red.png")
    answers = [
        client.chat.completions.create(
            model=NAME, messages=show(url), max_tokens=8, temperature=0
        )
        .choices[0]
        .message.content
        for url in (f"file://{vision_folder}/red.png", encode_image(draw("red")))
    ]
    assert answers[0] == answers[1]
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model=NAME, messages=show(f"file://{tmp_path}/red.png"), max_tokens=1
        )


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,AAAA", "http://127.0.0.1/x.png", "https://example.org/x"],
)
def test_an_image_that_cannot_be_loaded_is_400_and_its_field_is_named(
    client: openai.OpenAI, url: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=show(url), max_tokens=1)
    assert str(caught.value.param).startswith("messages[0].content[1].image_url")


def test_the_embeddings_of_a_text_give_the_same_answer_as_the_text(
    client: openai.OpenAI, model: Any, tokenizer: Any
) -> None:
    prompt = "Once upon a time there was a little server"
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        embeds = model.get_input_embeddings()(ids)

    def complete(**body: Any) -> str:
        answer = client.completions.create(
            model=NAME, max_tokens=16, temperature=0, **body
        )
        return answer.choices[0].text

    text = complete(prompt=prompt)
    assert text
    by_vectors = complete(
        prompt=None, extra_body={"prompt_embeds": encode_tensor(embeds)}
    )
    assert by_vectors == text
    sparse = encode_tensor(embeds[0].to_sparse())
    assert complete(prompt=None, extra_body={"prompt_embeds": sparse}) == text


def test_a_chat_with_vectors_streams_the_same_answer_as_the_words(
    client: openai.OpenAI, model: Any, tokenizer: Any
) -> None:
    ids = tokenizer("the quick brown fox", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        embeds = model.get_input_embeddings()(ids)[0]

    def stream(content: Any) -> str:
        chunks = client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": content}],
            max_tokens=16,
            temperature=0,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    part = {"type": "prompt_embeds", "prompt_embeds": encode_tensor(embeds)}
    assert stream([part]) == stream("the quick brown fox")


def test_the_server_ends_with_its_template_processes(server: Any) -> None:
    # The kernel lists children by the thread that started them.
    threads = Path(f"/proc/{server.process.pid}/task").iterdir()
    pids = [pid for t in threads for pid in (t / "children").read_text().split()]
    assert pids
    assert server.stop() == 0
    # One process watches the others, and ends a moment after them.
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
