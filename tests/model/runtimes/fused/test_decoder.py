"""The layers for GPUs compute what transformers' modules compute.

Without a GPU, Triton's interpreter runs their kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from interpreter import require_triton
import pytest
import torch

from trioserve.model.runtimes.choice import OutputDiffers
from trioserve.model.self_check.steps import make_check

from ...planning import Planner, make_image, make_prompt
from ...windowed import WindowedServer
from .graphs import DEVICE, GRAPHS, check_on_gpu, load

require_triton()

# They differ in biases, norms of queries, windows, soft caps, norms behind the products, the
# scale of the embedding, and in how their weights are joined; and those with experts in what
# stands beside them, and in their routers, biases and gates. DeepSeek keeps latents.
TYPES = (
    "qwen2",
    "qwen2_moe",
    "gpt_oss",
    "deepseek_v3",
    *(
        pytest.param(model_type, marks=pytest.mark.matrix)
        for model_type in (
            *("llama", "qwen3", "gemma2", "gemma3_text", "phi3"),
            *("mixtral", "qwen3_moe"),
        )
    ),
)

ROUNDED = ("qwen3", "gemma3_text", "gemma2", "deepseek_v3")


@pytest.mark.parametrize("model_type", TYPES)
def test_a_model_writes_what_generate_writes(
    tiny: Callable[..., Any], model_type: str
) -> None:
    model = tiny(model_type, DEVICE)
    planner = Planner(load(model))
    sequences = [planner.begin(make_prompt(9, slot), slot=slot) for slot in (0, 1)]
    planner.step((sequences[0], 5))
    planner.step((sequences[1], 9), (sequences[0], 4))
    planner.run(*sequences, num_tokens=2)
    model.check(*sequences)


def test_a_mistake_where_only_wanted_tokens_go_on_is_noticed(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trioserve.model.runtimes.fused.layer import LayerStep

    narrow = LayerStep.narrow
    monkeypatch.setattr(
        LayerStep, "narrow", lambda step, places, tiles: narrow(step, places - 1, tiles)
    )
    with pytest.raises(OutputDiffers, match="its output would differ"):
        load.__wrapped__(tiny("qwen2", DEVICE))


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_images_whose_tokens_see_each_other(tiny_vision: Callable[..., Any]) -> None:
    model = tiny_vision("gemma3", DEVICE)
    planner = Planner(load(model))
    mixed = model.join(make_prompt(3), make_image(), make_prompt(4, 1))
    sequence = planner.begin(mixed.prompt, embedded=mixed.embedded)
    planner.run(sequence, num_tokens=2, chunk=9)
    model.check_at(mixed, sequence.outputs)


def test_experts_are_compiled_for_hidden_states(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routers may have another type: DeepSeek's are float32."""
    from trioserve.kernels.triton.experts import Experts
    from trioserve.model.runtimes.fused import decoder
    from trioserve.model.runtimes.fused.products import PlainWeight

    loaded = load(tiny("qwen2_moe", DEVICE))
    tables, _ = make_check(loaded.info.vocab_size, torch.device(DEVICE))
    assert loaded.native is not None
    layers: Any = loaded.native.open(tables, num_blocks=1)
    dtypes: list[torch.dtype] = []
    monkeypatch.setattr(decoder, "list_sizes", lambda most: [])
    monkeypatch.setattr(PlainWeight, "dtype", torch.float64)
    monkeypatch.setattr(Experts, "compile", lambda *each: dtypes.append(each[1]))
    layers.prepare(1)
    assert set(dtypes) == {torch.float32}


# Padding computes with what its memory held before.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "model_type", ["qwen2", pytest.param("qwen2_moe", marks=pytest.mark.matrix)]
)
def test_graphs_write_the_same_with_padding(
    tiny: Callable[..., Any], model_type: str
) -> None:
    model = tiny(model_type, DEVICE)
    planner = Planner(load(model), max_num_seqs=4, max_model_len=16)
    num_graphs = len(GRAPHS)
    planner.runner.warm_up()
    sequences = [planner.begin(make_prompt(4, slot), slot=slot) for slot in range(3)]
    planner.step(*((sequence, 4) for sequence in sequences))
    planner.run(*sequences, num_tokens=2)
    model.check(*sequences)
    # Three rows in a graph of four.
    assert sum(graph.num_replays for graph in GRAPHS[num_graphs:]) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "model_type",
    ["qwen2", *(pytest.param(each, marks=pytest.mark.matrix) for each in ROUNDED)],
)
def test_a_cache_of_int8_gives_what_modules_with_one_give(
    tiny: Callable[..., Any], model_type: str
) -> None:
    model = tiny(model_type, DEVICE)
    outputs = []
    for loaded in (model.loaded, load(model)):
        rounded = replace(loaded, kv_dtype=torch.int8)
        planner = Planner(rounded, max_num_seqs=4, max_model_len=16)
        planner.runner.warm_up()
        sequences = [planner.begin(make_prompt(5, i), slot=i) for i in range(3)]
        planner.step((sequences[0], 3))
        planner.step((sequences[0], 2), (sequences[1], 5), (sequences[2], 5))
        # Three rows in a graph of four.
        planner.run(*sequences, num_tokens=2)
        outputs.append([each.outputs for each in sequences])
    assert outputs[0] == outputs[1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_window_blocks_are_given_back_and_taken_again(tiny: Callable[..., Any]) -> None:
    model = tiny("gemma3_text", DEVICE)
    # Its window and a chunk alone.
    server = WindowedServer(load(model), num_window_blocks=8, max_num_seqs=1)
    prompt = make_prompt(33)
    (output,) = server.answer(prompt, num_tokens=2)
    model.check_behind(prompt, output)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"])
def test_a_gpu_runs_experts_in_graphs(
    tiny: Callable[..., Any], model_type: str, dtype: Any
) -> None:
    check_on_gpu(tiny(model_type, DEVICE), dtype)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_model_runs_on_the_second_gpu(tiny: Callable[..., Any]) -> None:
    check_on_gpu(tiny("qwen2", DEVICE), "float32", "cuda:1")
