"""Lay out the weights of a model's products for the CPU, once.

MKL, which PyTorch's linear modules call, is slow where few tokens meet a large matrix.
oneDNN reads a weight that was laid out for it beforehand: with two cores of an AMD EPYC,
a matrix of 384 by 1536 takes 0.11 ms in place of 0.38 for 12 tokens, and 11 in place of
16 for 2048; a text of 12 tokens takes all-MiniLM-L6-v2 5.3 ms in place of 7.8, and a
step of SmolLM2-135M in bfloat16 28 ms in place of 40 for one sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

# Below, a product takes less time than it takes to call oneDNN.
_MIN_WEIGHTS = 2**14


def pack_products(model: nn.Module) -> None:
    """Replace a model's linear modules by packed ones, where the machine has them."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and _can_be_packed(child):
                setattr(module, name, _PackedLinear(child))


def fuse_activations(model: nn.Module) -> None:
    """Let the feed-forward products of BERT's many descendants apply GELU themselves.

    The numbers are in the cache then: 6 % of a pass. It goes by the names of
    BertIntermediate alone and not by what a module does with them, so the caller has to
    compare what the model gives.
    """
    for module in model.modules():
        product: object = getattr(module, "dense", None)
        activation = getattr(module, "intermediate_act_fn", None)
        if isinstance(product, _PackedLinear) and type(activation) is GELUActivation:
            product.activation = "gelu"
            module.intermediate_act_fn = nn.Identity()


def _can_be_packed(linear: nn.Linear) -> bool:
    weight = linear.weight
    return (
        # Other classes may do more than multiply.
        type(linear) is nn.Linear
        and torch.backends.mkldnn.is_available()
        and weight.device.type == "cpu"
        and weight.numel() >= _MIN_WEIGHTS
        and _has_instructions(weight.dtype)
    )


def _has_instructions(dtype: torch.dtype) -> bool:
    operators = torch.ops.mkldnn
    return (
        dtype == torch.float32
        or (dtype == torch.bfloat16 and operators._is_mkldnn_bf16_supported())
        or (dtype == torch.float16 and operators._is_mkldnn_fp16_supported())
    )


class _PackedLinear(nn.Module):
    """A linear module for inference; its operators are those of torch.compile."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation = "none"
        # Some models look at its type. Holding the numbers twice would double memory.
        self.weight = weight.new_empty(()).expand(weight.shape)

    def forward(self, states: Tensor) -> Tensor:
        product: Tensor = self._multiply(
            states, self._packed, self.bias, self.activation, [], "none"
        )
        return product
