"""The keys that queries see are read from the rules of transformers' masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from trioserve.model.attention.bridge import AttentionContext
from trioserve.model.attention.masks import probe_decoder, read_rule
from trioserve.model.attention.probe import Reach, UnfitLayer
from trioserve.model.attention.registered import IMPLEMENTATION


@pytest.mark.parametrize(
    "rule, reach",
    [
        (causal_mask_function, Reach()),
        (bidirectional_mask_function, Reach(is_causal=False)),
        (sliding_window_causal_mask_function(7), Reach(window=7)),
        (sliding_window_causal_mask_function(1), Reach(window=1)),
        (sliding_window_causal_mask_function(2), Reach(window=2)),
        (sliding_window_causal_mask_function(131072), Reach(window=131072)),
        (chunked_causal_mask_function(5, torch.zeros(1, dtype=int)), Reach(chunk=5)),
        (chunked_causal_mask_function(2, torch.zeros(1, dtype=int)), Reach(chunk=2)),
    ],
)
def test_rules(rule: Any, reach: Reach) -> None:
    assert read_rule(rule) == reach


@pytest.mark.parametrize("reach", [Reach(window=7), Reach(chunk=7), Reach()])
def test_the_first_key_is_the_first_that_is_seen(reach: Reach) -> None:
    for query in range(30):
        seen = reach.sees(torch.tensor(query), torch.arange(40)).nonzero()
        assert int(seen[0]) == reach.first_key(query)
        assert int(seen[-1]) == query


@pytest.mark.parametrize(
    "rule",
    [
        # Sinks of attention: the first keys are always seen.
        lambda b, h, q, k: (k <= q) & ((k > q - 9) | (k < 2)),
        # The tokens of an image see each other.
        or_masks(causal_mask_function, lambda b, h, q, k: (q < 6) & (k < 6) & (q > 1)),
        # A window that grows.
        lambda b, h, q, k: (k <= q) & (k > q // 2 - 4),
    ],
)
def test_other_rules_are_refused(rule: Callable[..., Any]) -> None:
    with pytest.raises(UnfitLayer, match="mask"):
        read_rule(rule)


@pytest.mark.parametrize(
    "model_type, fields, reaches",
    [
        ("mistral", {"sliding_window": 24}, [Reach(window=24)] * 2),
        # Its layers pass no window: only the mask has it.
        ("phimoe", {"sliding_window": 24}, [Reach(window=24)] * 2),
        (
            "llama4_text",
            {
                "attention_chunk_size": 24,
                "layer_types": ["chunked_attention", "full_attention"],
            },
            [Reach(chunk=24), Reach()],
        ),
    ],
)
def test_reaches_of_models(
    model_type: str, fields: dict[str, Any], reaches: list[Reach]
) -> None:
    config = AutoConfig.for_model(
        model_type,
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=32,
        vocab_size=50,
        pad_token_id=0,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        **fields,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    layers = probe_decoder(model, AttentionContext(model))
    assert [layer.reach for layer in layers] == reaches
