"""Tiny encoders and classifiers with seeded random weights, for tests of pooling.

    folder = save_tiny_encoder("bert", tmp_path / "model")
    folder = save_tiny_encoder("roberta", tmp_path / "reranker", head="sequence",
                               num_labels=1)

Part of the shipped test kit. torch and transformers are imported inside functions:
importing this module costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

# Small, but with the differences between architectures, as in models.py. The vocabulary
# holds the tokens of tokenizer.py and of processors.py.
_COMMON: dict[str, Any] = {
    "vocab_size": 640,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}

# A text begins at the third row of the table of positions, so it may have 128 tokens.
_PADDED_POSITIONS = {"max_position_embeddings": 130, "pad_token_id": 1}

_DECODER: dict[str, Any] = {
    **_COMMON,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

# Attention windows are shorter than the texts of the tests.
TINY_ENCODERS: dict[str, dict[str, Any]] = {
    "bert": _COMMON,
    "electra": {**_COMMON, "embedding_size": 16},
    "albert": {**_COMMON, "embedding_size": 16},
    "distilbert": {
        "vocab_size": 640,
        "dim": 32,
        "hidden_dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
    },
    "roberta": {**_COMMON, **_PADDED_POSITIONS, "type_vocab_size": 1},
    "xlm-roberta": {**_COMMON, **_PADDED_POSITIONS, "type_vocab_size": 1},
    "camembert": {**_COMMON, **_PADDED_POSITIONS, "type_vocab_size": 1},
    "mpnet": {**_COMMON, **_PADDED_POSITIONS},
    "deberta-v2": {
        **_COMMON,
        "relative_attention": True,
        "position_buckets": 16,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {
        **_COMMON,
        "num_hidden_layers": 4,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "llama": _DECODER,
    "qwen3": {**_DECODER, "head_dim": 16},
    "mistral": {**_DECODER, "sliding_window": 8},
    "gemma3_text": {
        **_DECODER,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,
        "use_bidirectional_attention": True,
    },
    "gemma2": {
        **_DECODER,
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
    },
    # These architectures cannot be served as encoders.
    "t5": {
        "vocab_size": 640,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
    },
    "fnet": _COMMON,
}


def save_tiny_encoder(
    kind: str,
    folder: Path,
    *,
    head: Literal["sequence", "token"] | None = None,
    num_labels: int = 3,
    seed: int = 0,
    **changes: object,
) -> Path:
    """Save a model with random weights by `save_pretrained`, without a tokenizer.

    Args:
      kind: a key of TINY_ENCODERS.
      folder: the target; it is created if it does not exist.
      head: the classifier of texts or of their tokens; None saves no classifier.
      num_labels: number of labels of the head.
      seed: seed of the weights.
      changes: fields of the configuration that replace fields of TINY_ENCODERS.

    Returns:
      folder
    """
    import torch
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    fields = {**TINY_ENCODERS[kind], **changes}
    build: Any = AutoModel
    if head is not None:
        fields.setdefault("num_labels", num_labels)
        build = {
            "sequence": AutoModelForSequenceClassification,
            "token": AutoModelForTokenClassification,
        }[head]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(kind, **fields)
        model = build.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            # A new model has equal biases (0) and norms (1); if the code mixed them up,
            # tests would not notice.
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder
