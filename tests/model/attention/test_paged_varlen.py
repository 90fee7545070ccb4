"""The backend of PyTorch's flash attention gives it what it wants.

The function itself runs on GPUs alone. A stand-in does what its documentation says.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from trioserve.model.attention.backend import PagedBackend, PagedModel
from trioserve.model.attention.paged_varlen import VarlenAttention
from trioserve.model.step.slots import SlotTables

from .steps import (
    LAYERS,
    Steps,
    check_sharing,
    check_windows,
    make_layer,
    make_model,
    run_story,
)


def attend_as_documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """As torch.nn.attention.varlen.varlen_attn, one sequence after the other."""
    assert cu_seq_k is None
    for each in (cu_seq_q, seqused_k, block_table):
        assert each.dtype == torch.int32
    counts = cu_seq_q.diff()
    assert max_q == counts.max() and max_k == seqused_k.max()
    assert cu_seq_q[-1] == len(query)
    assert enable_gqa == (query.shape[1] != key.shape[2])
    left, right = window_size
    assert right == 0
    parts = []
    for begin, count, num_keys, pages in zip(
        cu_seq_q.tolist(), counts.tolist(), seqused_k.tolist(), block_table
    ):
        keys, values = (
            each[pages.long()].flatten(0, 1)[:num_keys].transpose(0, 1)
            for each in (key, value)
        )
        # The last query sees the last key.
        queries = torch.arange(num_keys - count, num_keys)[:, None]
        places = torch.arange(num_keys)
        mask = places <= queries
        if left >= 0:
            mask &= places >= queries - left
        part = scaled_dot_product_attention(
            query[begin : begin + count].transpose(0, 1),
            keys,
            values,
            mask,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        parts.append(part.transpose(0, 1))
    return torch.cat(parts)


def make_backend(model: PagedModel, tables: SlotTables) -> PagedBackend:
    return VarlenAttention(model, tables, attend_as_documented)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in is for a CPU")
@pytest.mark.parametrize(
    "name", ["plain", "one head of keys", "no groups", "window", "window of one"]
)
def test_layers_equal_torchs_operators(name: str) -> None:
    run_story(Steps(make_backend, LAYERS[name]), 2e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in is for a CPU")
def test_layers_that_share() -> None:
    check_sharing(make_backend)


def test_layers_with_windows_have_blocks_of_their_own() -> None:
    check_windows(make_backend)


def find_obstacle(**changes: Any) -> str | None:
    wanted = {
        "block_size": 256,
        "dtype": torch.bfloat16,
        "device": torch.device("cuda"),
    }
    return VarlenAttention.find_obstacle(make_model(**{**wanted, **changes}))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="PyTorch has no block tables")
def test_its_limits() -> None:
    assert find_obstacle() is None
    assert find_obstacle(device=torch.device("cpu")) == "it needs a GPU"
    assert (
        find_obstacle(block_size=16) == "it needs blocks of 256 tokens, by --block-size"
    )
    assert (
        find_obstacle(dtype=torch.float32) == "it needs float16 or bfloat16, by --dtype"
    )
    for name in ("softcap", "sinks"):
        obstacle = find_obstacle(layer=LAYERS[name])
        assert obstacle == "the model changes its scores before the softmax"
    for dims in ((24, 20), (512, 512)):
        obstacle = find_obstacle(layer=make_layer(dims=dims))
        assert obstacle == "the heads of the model do not fit"
