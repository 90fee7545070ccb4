"""The plug-in of docs/ in a real server; transformers' generate() is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import trio

import trioserve
from trioserve.frontend import TextParams

pytestmark = pytest.mark.slow

# A model repeats a prompt like this, unless a plug-in forbids it.
PROMPT = [300, 301] * 6
NUM_TOKENS = 60


@pytest.fixture(scope="module")
def generate(model_folder: Path) -> Callable[..., list[int]]:
    """Return a function: settings -> generate()'s greedy continuation."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder)

    def run(**settings: Any) -> list[int]:
        prompt = torch.tensor([PROMPT])
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=None,
            **settings,
        )
        tokens: list[int] = output[0, len(PROMPT) :].tolist()
        return tokens

    return run


# The client (3.54) leaves generators of its HTTP library to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_requests_with_and_without_the_plug_in_run_side_by_side(
    server: Any, generate: Any
) -> None:
    answers: dict[int, list[int]] = {}

    async def ask(client: openai.AsyncOpenAI, size: int) -> None:
        named = {"logits_processors": {"no-repeat": {"size": size}}} if size else {}
        answer: Any = await client.completions.create(
            model="tiny-llama",
            prompt=PROMPT,
            max_tokens=NUM_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True, **named},
        )
        answers[size] = list(answer.choices[0].token_ids)

    with trio.fail_after(180):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none"
        ) as client:
            async with trio.open_nursery() as nursery:
                for size in range(4):
                    nursery.start_soon(ask, client, size)
            with pytest.raises(openai.BadRequestError, match="a whole number"):
                await client.completions.create(
                    model="tiny-llama",
                    prompt=PROMPT,
                    extra_body={"logits_processors": {"no-repeat": {"size": "3"}}},
                )
    for size in range(4):
        # 0 forbids nothing in transformers, too.
        assert answers[size] == generate(no_repeat_ngram_size=size)
    assert len(set(map(tuple, answers.values()))) == 4, "each forbids something else"


async def test_an_embedded_engine_loads_a_plug_in_by_an_option(
    model_folder: Path,
    plugin_folder: Path,
    generate: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(plugin_folder)
    with trio.fail_after(180):
        async with trioserve.open_engine(
            str(model_folder),
            kv_cache_memory="64MiB",
            num_threads=1,
            logits_processor=("my_processors:NoRepeat",),
        ) as engine:
            assert engine.info.logits_processors == ("no-repeat",)
            prompt = await engine.renderer.render_ids(tuple(PROMPT))
            sampling = trioserve.SamplingParams(
                temperature=0.0,
                max_tokens=NUM_TOKENS,
                ignore_eos=True,
                logits_processors=(("no-repeat", {"size": 2}),),
            )
            async with engine.open_text([prompt], sampling, TextParams()) as stream:
                (whole,) = await stream.collect()
    assert list(whole.token_ids) == generate(no_repeat_ngram_size=2)
