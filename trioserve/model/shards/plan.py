"""The split of a model's parts, by the plans in transformers' models.

A plan (`base_model_tp_plan`) names the products of each layer: colwise ones
have split outputs; rowwise ones have split inputs, and their outputs are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import re
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel

from ..attention.probe import LayerSpec, UnfitLayer

# columns         the outputs of a product
# rows            its inputs; its outputs are summed
# packed columns  the outputs of two products in one, of each the same columns
# packed heads    the queries, keys and values of GPT-2, which are one product
# sum             the outputs of a module are summed, whose weights are split by other rules
Style = Literal["columns", "rows", "packed columns", "packed heads", "sum"]

_STYLES: dict[str, Style] = {
    "colwise": "columns",
    "rowwise": "rows",
    "packed_colwise": "packed columns",
    "packed_heads": "packed heads",
    "moe_tp_experts": "sum",
}

# They need nothing: a norm within a head is the same everywhere, and the embedding is split
# in every model.
_WHOLE = {"replicated_with_grad_allreduce", "replicated", "embedding_rowwise"}

# Plans of models that carry none, or none for all their products, by model_type.
_PLANS = {
    "gpt2": {
        "h.*.attn.c_attn": "packed_heads",
        "h.*.attn.c_proj": "rowwise",
        "h.*.mlp.c_fc": "colwise",
        "h.*.mlp.c_proj": "rowwise",
    },
    "qwen2_moe": {
        "layers.*.mlp.shared_expert.gate_proj": "colwise",
        "layers.*.mlp.shared_expert.up_proj": "colwise",
        "layers.*.mlp.shared_expert.down_proj": "rowwise",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The split of one module, or of one weight that a module holds itself.

    Args:
      name: of the module or of the weight, in the whole model.
      attention: the call of attention whose heads it computes or reads; None if it is not a
        product of an attention.
    """

    name: str
    style: Style
    attention: LayerSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The splits of a model.

    Args:
      embedding, head: names of the modules that turn tokens into vectors and vectors into
        logits.
      vocab_size: tokens of both.
    """

    splits: tuple[Split, ...]
    embedding: str
    head: str
    vocab_size: int


def find_plan(model: PreTrainedModel, layers: tuple[LayerSpec, ...]) -> SplitPlan:
    """Find out how a model is split.

    Args:
      model: the whole model, which needs no memory for its weights.
      layers: its calls of attention.

    Raises:
      UnfitLayer: it has no plan, or one that is not known here.
    """
    names = {module: name for name, module in model.named_modules()}
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        raise UnfitLayer("its output projection is not a product alone")
    if not isinstance(embedding, nn.Embedding):
        raise UnfitLayer("its tokens are not looked up in one table")
    if embedding.num_embeddings != head.out_features:
        raise UnfitLayer("it reads and writes different vocabularies")
    return SplitPlan(
        splits=tuple(_list_splits(model, layers)),
        embedding=names[embedding],
        head=names[head],
        vocab_size=head.out_features,
    )


def _list_splits(
    model: PreTrainedModel, layers: tuple[LayerSpec, ...]
) -> Iterator[Split]:
    attentions = {layer.module_name: layer for layer in layers}
    patterns = _list_patterns(model)
    split_attentions = set()
    for name in _list_names(model):
        for pattern, style in patterns:
            if pattern.fullmatch(name):
                attention = attentions.get(name.rpartition(".")[0])
                split_attentions.add(attention)
                yield Split(name=name, style=style, attention=attention)
    if not split_attentions >= set(layers):
        raise UnfitLayer("its plan for tensor parallelism leaves attention whole")


def _list_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of modules and of weights."""
    for name, module in model.named_modules():
        yield name
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            for weight, _ in module.named_parameters(recurse=False):
                yield f"{name}.{weight}"


def _list_patterns(model: Any) -> list[tuple[re.Pattern[str], Style]]:
    config = model.config.get_text_config(decoder=True)
    own = _PLANS.get(config.model_type, {})
    plan = {**own, **(getattr(config, "base_model_tp_plan", None) or {})}
    if not plan:
        raise UnfitLayer("it has no plan for tensor parallelism")
    decoder = model.get_decoder()
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    patterns = []
    for pattern, style in plan.items():
        if style in _WHOLE:
            continue
        if style not in _STYLES:
            raise UnfitLayer(
                f"its plan for tensor parallelism has the style {style!r} for {pattern}"
            )
        whole = ".".join(filter(None, (prefix, pattern)))
        expression = re.escape(whole).replace(r"\*", r"\d+")
        patterns.append((re.compile(expression), _STYLES[style]))
    return patterns
