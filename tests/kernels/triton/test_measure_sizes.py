"""A layer gets the sizes that were fastest for its own shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
import torch
from torch import Tensor

require_triton()

from trioserve.kernels.triton import measure_sizes  # noqa: E402
from trioserve.kernels.triton.measure_sizes import (  # noqa: E402
    choose_sizes,
    list_layer_candidates,
    time_on_device,
)
from trioserve.kernels.triton.paged import PagedLayer  # noqa: E402
from trioserve.kernels.triton.size_table import SizeTable  # noqa: E402
from trioserve.kernels.triton.tiles import Tiles  # noqa: E402
from trioserve.kernels.triton.widths import AttendSize  # noqa: E402
from trioserve.model.attention.probe import LayerSpec  # noqa: E402

# Seconds, for a slow machine, too.
ENOUGH = 1e6

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_layer(
    dtype: torch.dtype = torch.float16, *, dim: int = 16, **rules: Any
) -> PagedLayer:
    spec = LayerSpec(
        module_name="layer",
        num_heads=4,
        num_kv_heads=2,
        key_dim=dim,
        value_dim=dim,
        is_causal=True,
        scaling=0.25,
        **{"window": None, **rules},
    )
    cache = torch.zeros(1, 8, 2, 2 * dim, dtype=dtype, device=DEVICE)
    if dtype != torch.int8:
        return PagedLayer(spec, cache, 4)
    scales = torch.zeros(2, 1, 2, 8, device=DEVICE)
    return PagedLayer(spec, cache, 4, scales=scales, dtype=torch.float16)


class Attention:
    """Stands in for the kernels: each size takes some seconds, and one computes nonsense."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, AttendSize]] = []
        self.broken: tuple[int, AttendSize] | None = None
        self.fastest: tuple[int, AttendSize] | None = None

    def attend(self, layer: PagedLayer, query: Tensor, tiles: Tiles) -> Tensor:
        ((rows, size),) = layer.measured.items()
        if len(tiles.chunks):
            assert tiles.num_queries == rows // layer.group > 1
        else:
            assert len(tiles.decodes) and rows == layer.decode_rows
        self.sizes.append((rows, size))
        is_broken = self.sizes[-1] == self.broken
        return torch.full((3,), torch.nan if is_broken else 1.0)

    def time(self, run: Callable[[], object]) -> float:
        run()
        return 1.0 if self.sizes[-1] == self.fastest else 2.0


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Attention:
    found = Attention()
    monkeypatch.setattr(
        PagedLayer,
        "attend",
        lambda layer, query, tiles: found.attend(layer, query, tiles),
    )
    return found


def test_decodes_and_chunks_have_sizes_of_their_own(
    attention: Attention, tmp_path: Path
) -> None:
    layer = make_layer()
    assert (layer.decode_rows, layer.chunk_rows, layer.long_rows) == (16, 64, 128)
    decodes, chunks = (list_layer_candidates(layer, rows, 80) for rows in (16, 64))
    attention.fastest, attention.broken = (64, chunks[1]), (16, decodes[2])
    found = choose_sizes(layer, SizeTable(tmp_path, ENOUGH), attention.time)
    assert found.measured == {16: decodes[0], 64: chunks[1]}
    assert found.long_queries == found.chunk_queries == 32
    assert found.cache is layer.cache
    count = len(attention.sizes)
    # At the next start.
    again = choose_sizes(layer, SizeTable(tmp_path, ENOUGH), attention.time)
    assert again.measured == found.measured and len(attention.sizes) == count


def test_long_chunks_have_more_rows_if_those_are_faster(
    attention: Attention, tmp_path: Path
) -> None:
    layer = make_layer()
    few, many = (list_layer_candidates(layer, rows, 80) for rows in (64, 128))
    attention.fastest = 128, many[0]
    found = choose_sizes(layer, SizeTable(tmp_path, ENOUGH), attention.time)
    assert {**found.measured, 16: None} == {16: None, 64: few[0], 128: many[0]}
    assert (found.chunk_queries, found.long_queries) == (32, 64)
    # They may be nonsense there.
    attention.broken = attention.fastest
    found = choose_sizes(layer, SizeTable(tmp_path / "other", ENOUGH), attention.time)
    assert 128 not in found.measured


def test_other_layers_are_measured_again(attention: Attention, tmp_path: Path) -> None:
    layers = [
        make_layer(),
        make_layer(torch.int8),
        make_layer(torch.bfloat16),
        make_layer(dim=32),
        make_layer(window=4),
        make_layer(softcap=2.0),
        replace(make_layer(), num_cores=8),
    ]
    for layer in layers:
        choose_sizes(layer, SizeTable(tmp_path, ENOUGH), attention.time)
    # Decodes, chunks, and the rows of long chunks: here, 128 rows have one size alone.
    assert len(list(tmp_path.iterdir())) == 3 * len(layers)
    count = len(attention.sizes)
    # In float32 there is one size alone.
    choose_sizes(make_layer(torch.float32), SizeTable(tmp_path, ENOUGH), attention.time)
    assert len(attention.sizes) == count


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_the_kernels_run_on_the_problems(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_sizes, "_DECODE_TOKENS", 20)
    monkeypatch.setattr(measure_sizes, "_CHUNK_TOKENS", 12)
    outputs: list[Tensor] = []

    def time(run: Callable[[], object]) -> float:
        output = run()
        assert isinstance(output, Tensor)
        outputs.append(output)
        return float(len(outputs))

    layer = make_layer(dtype)
    found = choose_sizes(layer, SizeTable(tmp_path, ENOUGH), time)
    # None was passed over, and the first of each was the fastest.
    counts = [len(list_layer_candidates(layer, rows, 80)) for rows in (16, 64)]
    # At last, 64 rows beside 128.
    # Two long sequences and sixteen short ones.
    shapes = [(18, 4, 16)] * counts[0] + [(12, 4, 16)] * (counts[1] + 2)
    assert [each.shape for each in outputs] == shapes
    assert all(each.isfinite().all() for each in outputs)
    firsts = {rows: list_layer_candidates(layer, rows, 80)[0] for rows in (16, 64)}
    assert found.measured == firsts


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_sizes_are_measured_on_a_device(dtype: torch.dtype, tmp_path: Path) -> None:
    layer = replace(make_layer(dtype, dim=128), num_cores=132)
    found = choose_sizes(layer, SizeTable(tmp_path, ENOUGH), time_on_device)
    assert {16, 64} <= set(found.measured) <= {16, 64, 128}
    # 128 rows have several sizes on some cards.
    assert len(list(tmp_path.iterdir())) in (3, 4)
