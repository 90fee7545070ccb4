"""The default model is real, and is downloaded once for each user."""

from __future__ import annotations

import pytest

from trioserve.config import DEFAULT_MODEL
from trioserve.weights import Weights, resolve_weights


@pytest.fixture(scope="module")
def default_weights() -> Weights:
    return resolve_weights(DEFAULT_MODEL)


@pytest.mark.slow
def test_the_default_model_needs_no_network_once_it_is_cached(
    default_weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert resolve_weights(DEFAULT_MODEL) == default_weights
    assert default_weights.name == "SmolLM2-135M-Instruct"


@pytest.mark.slow
def test_the_default_model_answers_and_stops(default_weights: Weights) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(default_weights.folder)
    model = AutoModelForCausalLM.from_pretrained(default_weights.folder, dtype="auto")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    num_prompt_tokens = prompt["input_ids"].shape[1]
    output = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(output[0, num_prompt_tokens:])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")
