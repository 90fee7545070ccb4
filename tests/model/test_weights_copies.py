"""Weights go from their files to the device without a copy on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.model.loading.weights import read_weights

# Operations that make views, or tensors over a mapped file.
_MAPPING = {"set_", "lift_fresh", "view", "slice", "select", "alias", "detach"}


class CountHostBytes(TorchDispatchMode):
    """Counts the bytes that operations write to memory of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _MAPPING:
            self.written += sum(
                leaf.nbytes
                for leaf in tree_leaves(result)
                if isinstance(leaf, Tensor) and leaf.device.type == "cpu"
            )
        return result


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_the_host_holds_no_copy_of_the_weights(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """The device meta stands in for a GPU: it is not the host."""
    folder: Path = tiny("llama").folder
    # The mode does not see the threads that read by default.
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    device = torch.device("meta")
    config = ModelConfig(dtype=dtype)  # type: ignore[arg-type]
    with CountHostBytes() as host:
        model = read_weights(
            AutoModelForCausalLM, folder, config, device=device, attention=None
        )
    weights = dict(model.named_parameters())
    saved = load_file(folder / "model.safetensors")
    assert {each.device for each in weights.values()} == {device}
    assert sum(map(Tensor.numel, weights.values())) == sum(
        map(Tensor.numel, saved.values())
    )
    # Angles of rotary positions, which no file has.
    assert host.written < min(each.nbytes for each in saved.values() if each.dim() > 1)
