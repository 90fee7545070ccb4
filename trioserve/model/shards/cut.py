"""Build one shard of a model: smaller weights, and sums where the others' parts are missing.

The modules stay of their own classes, with fewer columns, rows or tokens. So transformers'
code runs them as they are, and kernels recognise them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .cuts import Cut
from .group import TensorGroup
from .plan import SplitPlan


def cut_model(
    model: nn.Module, plan: SplitPlan, cuts: Mapping[str, Cut], group: TensorGroup
) -> None:
    """Leave one shard's part of a model.

    Args:
      model: its weights have no numbers yet; it may be one stage of a pipeline, and lack
        modules of others.
      plan: of the whole model.
      cuts: of its weights, by their names.
    """
    modules = dict(model.named_modules())
    for name, cut in cuts.items():
        owner, _, attribute = name.rpartition(".")
        weight = getattr(modules.get(owner), attribute, None)
        if isinstance(weight, nn.Parameter):
            setattr(modules[owner], attribute, _make_part(weight, cut))
            _set_sizes(modules[owner])
    for split in plan.splits:
        module: Any = modules.get(split.name)
        if module is not None and split.style in ("rows", "sum"):
            group.sum_output(module)
        if module is not None and split.style == "packed heads":
            # transformers' code takes queries, keys and values apart by it.
            attention: Any = modules[split.name.rpartition(".")[0]]
            attention.split_size = len(cuts[f"{split.name}.weight"].kept)
    embedding, head = modules.get(plan.embedding), modules.get(plan.head)
    # A stage may have modules without weights in their places.
    if isinstance(embedding, nn.Embedding):
        _look_up_part(embedding, cuts[f"{plan.embedding}.weight"].kept, group)
    if isinstance(head, nn.Linear):
        _join_outputs(head, plan.vocab_size, group)


def _make_part(weight: Tensor, cut: Cut) -> nn.Parameter:
    part = torch.empty(
        cut.shape_part(weight.shape), dtype=weight.dtype, device=weight.device
    )
    return nn.Parameter(part, requires_grad=False)


def _set_sizes(module: Any) -> None:
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.padding_idx = len(module.weight), None
    elif hasattr(module, "nf"):
        # The outputs of GPT-2's products.
        module.nf = module.weight.shape[1]


def _look_up_part(embedding: nn.Embedding, kept: range, group: TensorGroup) -> None:
    """Let an embedding look up its own tokens, and add the vectors of the others'."""
    look_up = embedding.forward

    def forward(token_ids: Tensor) -> Tensor:
        places = token_ids - kept.start
        is_elsewhere = (places < 0) | (places >= len(kept))
        vectors = look_up(places.masked_fill(is_elsewhere, 0))
        vectors = vectors.masked_fill(is_elsewhere[..., None], 0)
        group.sum(vectors)
        return vectors

    # On the module, because its class may scale the vectors.
    embedding.__dict__["forward"] = forward


def _join_outputs(head: nn.Linear, vocab_size: int, group: TensorGroup) -> None:
    def join(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return group.join_logits(output, vocab_size)

    head.register_forward_hook(join)
