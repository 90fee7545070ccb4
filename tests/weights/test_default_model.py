"""The default model is real, and is downloaded once for each user."""

from __future__ import annotations

import pytest

import trioserve
from trioserve.config import DEFAULT_MODEL
from trioserve.weights import resolve_description


@pytest.mark.slow
def test_the_cache_has_the_default_model_once_and_then_needs_no_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = resolve_description(DEFAULT_MODEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert resolve_description(DEFAULT_MODEL) == weights
    assert weights.name == "SmolLM2-135M-Instruct"
    assert weights.gguf == weights.folder / "model.gguf"
    names = {path.name for path in weights.folder.iterdir()}
    assert {"config.json", "tokenizer.json", "generation_config.json"} <= names
    assert "model.safetensors" not in names


@pytest.mark.slow
async def test_the_default_model_answers_from_its_own_file_and_stops(
    monkeypatch: pytest.MonkeyPatch, needs_kernels: None
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the file is converted")

    monkeypatch.setattr("trioserve.weights.gguf.convert_gguf", refuse)
    text = ""
    async with trioserve.open_engine(max_model_len=256, device="cpu") as engine:
        assert engine.info.kernels.startswith("native")
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        async with engine.open_chat(messages, max_tokens=24) as deltas:
            async for delta in deltas:
                text += delta.text
                reason = delta.finish_reason
    assert "Paris" in text
    assert reason == "stop"
