"""The kernels compile for GPUs, and the numbers that they work on stay in registers."""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest
import torch

from ..building import NATIVE, keep

triton = pytest.importorskip("triton", reason="needs the extra triton")

FOLDER = Path(__file__).parent
KERNELS = NATIVE.parent / "triton"

# A program cannot have more, on cards of capability 8.6 and 8.9, and of 9.0.
LEAST_SHARED = 99 * 1024
MOST_SHARED = 227 * 1024

# Bytes of a thread. With experts that adapters change, the compiler keeps a few addresses elsewhere
# while a loop runs, though there are registers left: so one more program fits.
PARKED = 32

# They read weights, or what is there before a step's first norm, before they wait for the kernels
# in front of them: see follow.py.
READ_EARLY = {"attend", "merge", "rotate_and_write", "multiply"}

# `merge` is launched where decodes are split.
LAYER_KERNELS = {
    "write_cache",
    "attend",
    "merge",
    "rotate_and_write",
    "add_and_normalize",
    "weigh",
    "shrink",
    "expand",
}
CACHE_KERNELS = {"write_cache", "attend", "merge", "rotate_and_write"}
LATENT_KERNELS = {"write_cache", "rotate_latents", "attend_latents", "merge"}
STORED_KERNELS = {"multiply", "restore", "round_inputs"}
STATE_KERNELS = {"convolve", "recur", "weigh_and_normalize"}
SPAN_KERNELS = {"prepare_spans", "run_spans"}
EXPERT_KERNELS = {"route", "group_pairs", "multiply_pairs", "sum_pairs", "shrink_pairs"}
SAMPLING_KERNELS = {"find_peaks", "sum_levels", "list_tokens", "draw", "penalize"}
SAMPLING_KERNELS |= {"take_in", "scan_part", "take_best"}


def compile_kernels(
    tmp_path: Path, script: str, *arguments: object
) -> list[dict[str, str | int]]:
    """Compile kernels, unless the same compiler has compiled the same before."""

    def compile_to(output: Path) -> None:
        # Triton keeps compiled kernels, so it would find the kernels of the last run.
        settings = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
        settings.pop("TRITON_INTERPRET", None)
        command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        output.write_text(done.stdout)

    facts = (script, triton.__version__, torch.__version__, *map(str, arguments))
    files = [*KERNELS.glob("*.py"), *FOLDER.glob("compil*.py")]
    lines = keep(map(str.encode, facts), files, compile_to).read_text().splitlines()
    return [json.loads(line) for line in lines]


def check(
    kernels: list[dict[str, str | int]],
    names: set[str],
    parked: int = 0,
    shared: int = LEAST_SHARED,
) -> None:
    assert {kernel["name"] for kernel in kernels} == names
    assert [kernel for kernel in kernels if int(kernel["shared"]) > shared] == []
    assert [kernel for kernel in kernels if int(kernel["spilled"]) > parked] == []
    assert [kernel for kernel in kernels if kernel["follows"] != kernel["waits"]] == []
    following = [kernel for kernel in kernels if kernel["follows"]]
    assert [kernel for kernel in following if kernel["writes_before"]] == []
    early = {kernel["name"] for kernel in following if kernel["reads_before"]}
    assert early <= READ_EARLY


def test_the_kernels_of_a_layer_compile_for_a_gpu(tmp_path: Path) -> None:
    """Those of adapters once for each size of a tile, wherever the table of adapters lies."""
    kernels = compile_kernels(tmp_path, "compile_layer.py", 90, "bfloat16", 64, 0)
    check(kernels, LAYER_KERNELS)
    for name in ("shrink", "expand"):
        hashes = [kernel["hash"] for kernel in kernels if kernel["name"] == name]
        assert len(hashes) == 2 * len(set(hashes)) == 4


def test_the_kernels_of_an_int8_cache_compile_for_a_gpu(tmp_path: Path) -> None:
    arguments = 80, "bfloat16", 128, 0, "int8"
    check(compile_kernels(tmp_path, "compile_layer.py", *arguments), CACHE_KERNELS)


def test_the_kernels_of_latents_compile_for_a_gpu(tmp_path: Path) -> None:
    """With 16 heads, decodes have fewer rows than chunks."""
    arguments = 90, "bfloat16", 16, 512, 64
    check(compile_kernels(tmp_path, "compile_latents.py", *arguments), LATENT_KERNELS)


def test_the_kernels_of_states_compile_for_a_gpu(tmp_path: Path) -> None:
    kernels = compile_kernels(tmp_path, "compile_states.py", 90, "bfloat16", 128)
    check(kernels, STATE_KERNELS | SPAN_KERNELS, shared=MOST_SHARED)


def test_the_kernels_of_experts_compile_for_a_gpu(tmp_path: Path) -> None:
    """Qwen3-30B-A3B's."""
    arguments = 90, "bfloat16", 128, 2048, 768
    check(
        compile_kernels(tmp_path, "compile_experts.py", *arguments),
        EXPERT_KERNELS,
        PARKED,
    )


def test_the_kernels_of_the_sampler_compile_for_a_gpu(tmp_path: Path) -> None:
    """Once, for batches of all sizes: no step waits for a compiler."""
    kernels = compile_kernels(tmp_path, "compile_sampling.py", 90, 1000)
    check(kernels, SAMPLING_KERNELS)
    # Four of them are compiled for captured steps, too.
    assert len({kernel["hash"] for kernel in kernels}) == len(SAMPLING_KERNELS) + 4


def test_the_kernels_of_weights_in_fewer_bits_compile_for_a_gpu(tmp_path: Path) -> None:
    kernels = compile_kernels(tmp_path, "compile_stored.py", 90, "bfloat16", 1)
    check(kernels, STORED_KERNELS)


@pytest.mark.matrix
@pytest.mark.parametrize("window", [0, 4096])
@pytest.mark.parametrize("dim", [64, 128, 192, 256, 512])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_all_kernels_compile_for_all_gpus(
    tmp_path: Path, capability: int, dtype: str, dim: int, window: int
) -> None:
    """With a window come a soft cap, sinks, norms of heads and a part that is not rotated."""
    check(
        compile_kernels(tmp_path, "compile_layer.py", capability, dtype, dim, window),
        LAYER_KERNELS,
    )


@pytest.mark.matrix
@pytest.mark.parametrize("window", [0, 4096])
@pytest.mark.parametrize("dim", [64, 128, 192, 256, 512])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_all_kernels_of_an_int8_cache_compile_for_all_gpus(
    tmp_path: Path, capability: int, dtype: str, dim: int, window: int
) -> None:
    arguments = capability, dtype, dim, window, "int8"
    check(compile_kernels(tmp_path, "compile_layer.py", *arguments), CACHE_KERNELS)


@pytest.mark.matrix
@pytest.mark.parametrize("window", [0, 4096])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("cache", [(), ("int8",)])
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_all_sizes_that_a_device_may_choose_compile(
    tmp_path: Path, capability: int, cache: tuple[str, ...], dim: int, window: int
) -> None:
    """The device measures whether a few addresses matter that registers do not hold."""
    arguments = capability, "bfloat16", dim, window, *cache, "sizes"
    kernels = compile_kernels(tmp_path, "compile_layer.py", *arguments)
    limit = LEAST_SHARED if capability < 90 else MOST_SHARED
    assert {kernel["name"] for kernel in kernels} == {"attend"}
    assert [kernel for kernel in kernels if int(kernel["shared"]) > limit] == []
    assert [kernel for kernel in kernels if int(kernel["spilled"]) > PARKED] == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("num_heads", "dim", "shared_dim"), [(128, 512, 64), (16, 512, 64), (40, 256, 32)]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("capability", [80, 89, 90])
@pytest.mark.parametrize("cache", [(), ("int8",)])
def test_all_kernels_of_latents_compile_for_all_gpus(
    tmp_path: Path,
    capability: int,
    dtype: str,
    num_heads: int,
    dim: int,
    shared_dim: int,
    cache: tuple[str, ...],
) -> None:
    arguments = capability, dtype, num_heads, dim, shared_dim, *cache
    check(compile_kernels(tmp_path, "compile_latents.py", *arguments), LATENT_KERNELS)


@pytest.mark.matrix
@pytest.mark.parametrize("state_dim", [16, 128, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_all_kernels_of_states_compile_for_all_gpus(
    tmp_path: Path, capability: int, dtype: str, state_dim: int
) -> None:
    check(
        compile_kernels(tmp_path, "compile_states.py", capability, dtype, state_dim),
        STATE_KERNELS | (set() if dtype == "float32" else SPAN_KERNELS),
        shared=MOST_SHARED if capability == 90 else LEAST_SHARED,
    )


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("capability", [80, 89, 90, 120])
def test_all_formats_of_weights_compile_for_all_gpus(
    tmp_path: Path, capability: int, dtype: str
) -> None:
    arguments = capability, dtype, 1, 32, 64, 100
    check(
        compile_kernels(tmp_path, "compile_stored.py", *arguments),
        STORED_KERNELS,
        PARKED if capability == 120 else 0,
        shared=MOST_SHARED if capability == 90 else LEAST_SHARED,
    )


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("num_experts", "hidden", "inner"),
    [(128, 2048, 768), (8, 4096, 14_336), (32, 2880, 2880), (512, 2048, 512)],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_all_kernels_of_experts_compile_for_all_gpus(
    tmp_path: Path,
    capability: int,
    dtype: str,
    num_experts: int,
    hidden: int,
    inner: int,
) -> None:
    """The sizes of Qwen3-30B-A3B, Mixtral 8x7B, gpt-oss-20b and Qwen3-Next."""
    arguments = capability, dtype, num_experts, hidden, inner
    check(
        compile_kernels(tmp_path, "compile_experts.py", *arguments),
        EXPERT_KERNELS,
        PARKED,
    )


@pytest.mark.matrix
@pytest.mark.parametrize("vocab_size", [4096, 32_000, 128_256, 262_144])
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_all_vocabularies_compile_for_all_gpus(
    tmp_path: Path, capability: int, vocab_size: int
) -> None:
    check(
        compile_kernels(tmp_path, "compile_sampling.py", capability, vocab_size),
        SAMPLING_KERNELS,
    )
