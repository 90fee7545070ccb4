"""Triton's kernels give what torch's operators give; its interpreter runs them on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from interpreter import require_triton
import pytest
import torch

from trioserve.kernels.triton.widths import AttendSize
from trioserve.model.attention import paged_triton
from trioserve.model.attention.backend import PagedModel
from trioserve.model.attention.paged_triton import TritonAttention
from trioserve.model.attention.probe import LayerSpec
from trioserve.model.step.slots import SlotTables

from ..planning import Planner, make_prompt
from .steps import (
    DEVICE,
    LAYERS,
    RoundedSteps,
    Steps,
    check_sharing,
    check_windows,
    make_layer,
    make_model,
    run_story,
)

require_triton()

from trioserve.kernels.triton import paged  # noqa: E402
from trioserve.kernels.triton.measure_sizes import list_layer_candidates  # noqa: E402
from trioserve.kernels.triton.paged import PagedLayer  # noqa: E402

LIMIT = 2e-5
MATRIX = pytest.mark.matrix


# A type -> the largest difference. Sums of float32 are made in another order.
LIMITS = {torch.float32: LIMIT, torch.float16: 4e-3, torch.bfloat16: 4e-2}


@pytest.mark.parametrize("name", ["one head of keys", "odd dims", "all", "latents"])
def test_layers_equal_torchs_operators(name: str) -> None:
    run_story(Steps(TritonAttention, LAYERS[name]), LIMIT)


@pytest.mark.parametrize(
    ("block_size", "dtype"), [(5, torch.bfloat16), (64, torch.float16)]
)
def test_other_blocks_and_types(block_size: int, dtype: torch.dtype) -> None:
    steps = Steps(TritonAttention, LAYERS["all"], block_size=block_size, dtype=dtype)
    run_story(steps, LIMITS[dtype])


def make_int8(model: PagedModel, tables: SlotTables) -> TritonAttention:
    return TritonAttention(replace(model, kv_dtype=torch.int8), tables)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("all", "latents") else MATRIX)
        for name in LAYERS
    ],
)
def test_a_cache_of_int8_gives_what_the_rounded_numbers_give(name: str) -> None:
    run_story(RoundedSteps(make_int8, LAYERS[name]), LIMIT)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=MATRIX)]
)
def test_a_cache_of_int8_with_other_types(dtype: torch.dtype) -> None:
    steps = RoundedSteps(make_int8, LAYERS["plain"], block_size=16, dtype=dtype)
    run_story(steps, LIMITS[dtype])


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 8, 16, 24, 32, 64, 128])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_all_combinations(
    layer: LayerSpec, block_size: int, dtype: torch.dtype
) -> None:
    steps = Steps(TritonAttention, layer, block_size=block_size, dtype=dtype)
    run_story(steps, LIMITS[dtype])


def test_layers_that_share() -> None:
    check_sharing(TritonAttention)


def test_layers_with_windows_have_blocks_of_their_own() -> None:
    check_windows(TritonAttention)


@pytest.mark.parametrize("window", [3, pytest.param(None, marks=pytest.mark.matrix)])
def test_tokens_of_an_image_see_each_other(window: int | None) -> None:
    """The second image is longer than the window."""
    layer = make_layer(heads=(4, 1), dims=(8, 8), window=window, joins_images=True)
    steps = Steps(TritonAttention, layer, images=((2, 4), (5, 10)))
    joined, output = steps.run((0, 12), (1, 2))
    assert (joined - output).abs().max() < LIMIT
    causal, _ = Steps(TritonAttention, replace(layer, joins_images=False)).run(
        (0, 12), (1, 2)
    )
    differs = (joined - causal).abs().amax((1, 2)) > 0.01
    assert differs.nonzero().flatten().tolist() == [2, 5, 6, 7, 8]
    assert steps.step((0, 1), (1, 9)) < LIMIT


def test_a_long_context() -> None:
    """Its chunk has two tiles, and its decode several splits of many keys."""
    layer = LAYERS["one head of keys"]
    steps = Steps(TritonAttention, layer, block_size=16, max_model_len=1056)
    # The prefix is written by the first chunk, whose own attention would take long.
    steps.fill(0, 1000)
    assert steps.step((0, 35)) < LIMIT
    assert steps.step((0, 1)) < LIMIT


def test_a_long_chunk_in_tiles_of_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills a device of one multiprocessor, and the next chunks do not."""
    monkeypatch.setattr(paged, "count_cores", lambda device: 1)
    monkeypatch.setattr(
        paged_triton,
        "_measure",
        lambda layer: replace(layer, measured={128: AttendSize(32, 8, 2)}),
    )
    num_queries: list[int] = []
    launch = PagedLayer._launch

    def watch(*args: Any) -> None:
        num_queries.append(args[-1])
        launch(*args)

    monkeypatch.setattr(PagedLayer, "_launch", watch)
    steps = Steps(
        TritonAttention, LAYERS["plain"], dtype=torch.float16, max_model_len=160
    )
    assert steps.step((0, 5), (1, 1), (2, 70)) < LIMITS[torch.float16]
    assert steps.step((0, 40), (2, 63)) < LIMITS[torch.float16]
    # A decode, chunks with a long one, and short ones.
    assert num_queries == [1, 64, 32]


@pytest.mark.parametrize("name", ["plain", "latents"])
def test_a_token_does_not_see_the_next_one_in_a_full_tile_of_keys(name: str) -> None:
    """The loop without masks ends before the tile of keys that has it."""
    steps = Steps(TritonAttention, LAYERS[name], block_size=16)
    steps.fill(0, 30)
    assert steps.step((0, 2)) < LIMIT


@pytest.mark.parametrize("block_size", [4, 24])
def test_a_window_has_keys_that_all_queries_see(block_size: int) -> None:
    """They are read without masks, and those before and behind them with masks."""
    layer = make_layer(heads=(4, 1), window=90)
    steps = Steps(TritonAttention, layer, block_size=block_size, max_model_len=192)
    steps.fill(0, 133)
    assert steps.step((0, 20)) < LIMIT
    assert steps.step((0, 1)) < LIMIT


def test_numbers_that_are_not_finite_spoil_no_other_sequence() -> None:
    steps = Steps(TritonAttention, LAYERS["plain"])
    # In a first chunk, torch reads keys before they are written to the cache.
    assert steps.step((0, 3)) < LIMIT
    for number in (torch.inf, -torch.inf, torch.nan):
        assert steps.step((0, 3), number=number) < LIMIT


def make_latents(**facts: Any) -> PagedModel:
    return make_model(layer=make_layer(**facts, values_in_keys=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("num_heads", [16, 20, 128])
def test_latents_of_real_models(
    num_heads: int, dtype: torch.dtype, is_int8: bool
) -> None:
    layer = make_layer(heads=(num_heads, 1), dims=(576, 512), values_in_keys=True)
    sizes: Any = {"block_size": 16, "dtype": dtype, "max_model_len": 1056}
    if is_int8:
        steps: Steps = RoundedSteps(make_int8, layer, **sizes)
    else:
        steps = Steps(TritonAttention, layer, **sizes)
    steps.fill(0, 1000)
    assert steps.step((0, 35), (1, 9)) < LIMITS[dtype]
    assert steps.step((0, 1), (1, 1)) < LIMITS[dtype]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("window", [None, 1024])
def test_chunks_of_real_models_in_all_sizes(
    window: int | None, rows: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(layer: PagedLayer) -> PagedLayer:
        major, minor = torch.cuda.get_device_capability()
        sizes = list_layer_candidates(layer, rows, 10 * major + minor)
        if number >= len(sizes):
            pytest.skip("there are fewer sizes")
        return replace(layer, measured={rows: sizes[number]})

    monkeypatch.setattr(paged_triton, "_measure", choose)
    monkeypatch.setattr(paged, "count_cores", lambda device: 1)
    layer = make_layer(heads=(32, 8), dims=(128, 128), window=window)
    steps = Steps(
        *(TritonAttention, layer),
        block_size=16,
        dtype=torch.bfloat16,
        max_model_len=4112,
    )
    steps.fill(0, 2000)
    assert steps.step((0, 2048), (1, 77)) < LIMITS[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("has_all", [False, True])
def test_a_cache_of_int8_at_real_sizes(
    has_all: bool, dim: int, dtype: torch.dtype
) -> None:
    """A long prompt in chunks, then decodes of one sequence and of several."""
    extras: Any = {"window": 1024, "softcap": 50.0, "sinks": True} if has_all else {}
    layer = make_layer(heads=(32, 8), dims=(dim, dim), **extras)
    steps = RoundedSteps(
        make_int8, layer, block_size=16, dtype=dtype, max_model_len=4112
    )
    # Of so many numbers some are beyond 4, where float16 has steps of 0.004.
    assert steps.step((0, 2048), (1, 77)) < 2 * LIMITS[dtype]
    assert steps.step((0, 2000), (1, 1)) < LIMITS[dtype]
    assert steps.step((0, 1)) < LIMITS[dtype]
    assert steps.step((0, 1), (1, 1), (2, 1)) < LIMITS[dtype]


@pytest.mark.parametrize(
    ("model", "obstacle"),
    [
        (make_model(), None),
        (
            make_model(dtype=torch.float64),
            "it needs float32, float16 or bfloat16, by --dtype",
        ),
        (
            make_model(layer=make_layer(dims=(576, 16))),
            "the heads of the model have more than 512 numbers",
        ),
        (make_latents(heads=(128, 1), dims=(576, 512)), None),
        (replace(make_model(), kv_dtype=torch.int8), None),
        (
            replace(make_latents(heads=(4, 1)), kv_dtype=torch.int8),
            None,
        ),
        (
            make_latents(heads=(4, 1), dims=(640, 512)),
            "latents have more than 512 numbers, or their shared keys more than 64",
        ),
        (
            make_latents(heads=(4, 2), dims=(24, 16)),
            "layers that keep latents have several heads of keys, change scores or join "
            "images",
        ),
        (
            make_latents(heads=(4, 1), dims=(24, 16), window=3),
            "layers that keep latents have windows",
        ),
    ],
)
def test_its_limits(model: PagedModel, obstacle: str | None) -> None:
    assert TritonAttention.find_obstacle(model) == obstacle


@pytest.mark.parametrize(
    "model_type",
    ["llama", "deepseek_v3", pytest.param("gemma3_text", marks=pytest.mark.matrix)],
)
def test_a_model_writes_what_generate_writes(
    tiny: Callable[..., Any], model_type: str
) -> None:
    model = tiny(model_type, DEVICE.type)
    planner = Planner(replace(model.loaded, attention_backend="triton"))
    sequences = [planner.begin(make_prompt(9, slot), slot=slot) for slot in (0, 1)]
    planner.step((sequences[0], 5))
    planner.step((sequences[1], 9), (sequences[0], 4))
    planner.run(*sequences, num_tokens=3)
    model.check(*sequences)
