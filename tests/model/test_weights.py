"""Weights take no more memory than they must, and are refused where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.errors import NotEnoughMemory
from trioserve.model.loading import weights_memory
from trioserve.model.loading.weights import read_weights
from trioserve.model.loading.weights_memory import check_weights_fit, count_weight_bytes

CPU = ModelConfig(device="cpu")


def count_numbers(folder: Path) -> int:
    tensors = load_file(folder / "model.safetensors")
    return sum(tensor.numel() for tensor in tensors.values())


def test_weights_count_in_the_type_that_they_will_have(folder: Path) -> None:
    count = count_numbers(folder)
    assert count_weight_bytes(folder, CPU) == 4 * count
    for dtype, size in (("float32", 4), ("bfloat16", 2), ("half", 2)):
        config = ModelConfig(device="cpu", dtype=dtype)  # type: ignore[arg-type]
        assert count_weight_bytes(folder, config) == size * count
    config = ModelConfig(device="cpu", quantization="int8")
    assert count_weight_bytes(folder, config) == count


def test_without_a_type_they_count_as_in_the_file(folder: Path) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "dtype": None, "torch_dtype": None}))
    assert count_weight_bytes(folder, CPU) == 4 * count_numbers(folder)
    packed = torch.zeros(3, 5, dtype=torch.int32)
    eight = torch.zeros(7, dtype=torch.float8_e4m3fn)
    parts = {"a": packed, "b": eight, "c": eight.to(torch.bfloat16)}
    save_file(parts, folder / "model.safetensors")
    assert count_weight_bytes(folder, CPU) == 60 + 7 + 14


def test_a_file_of_more_than_the_memory_is_counted(folder: Path) -> None:
    """The file is sparse. Libraries map such a file for torch in vain."""
    count = 2**40
    place = {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}
    header = json.dumps({"a": place}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + 2 * count)
    with pytest.raises(NotEnoughMemory, match="weights take 4096.0 GiB, and cpu has"):
        check_weights_fit(folder, CPU)


@pytest.mark.parametrize("whole, free", [(10**9, 10**9), (10**9, 10), (10, 10)])
def test_a_warning_if_they_may_fit_and_an_error_if_never(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    whole: int,
    free: int,
) -> None:
    monkeypatch.setattr(weights_memory, "find_whole_memory", lambda device: whole)
    monkeypatch.setattr(weights_memory, "find_free_memory", lambda device: free)
    if whole == 10:
        with pytest.raises(NotEnoughMemory, match="cpu has 0.0 GiB in all; take"):
            check_weights_fit(folder, CPU)
        return
    check_weights_fit(folder, CPU)
    assert ("GiB free: reading them may fail" in caplog.text) is (free == 10)


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
