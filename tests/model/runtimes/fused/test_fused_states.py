"""Models with states on Triton's kernels compute what transformers' modules compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import functools
from pathlib import Path
from typing import Any, Literal, cast

from interpreter import require_triton
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.kernels.triton.tiles import ROW_NUMBERS, TILE_NUMBERS
from trioserve.model.loading.choose_runtime import make_decoder
from trioserve.model.loading.files.facts import read_facts
from trioserve.model.loading.load import load_modules
from trioserve.model.runtimes.choice import OutputDiffers
from trioserve.model.runtimes.fused.decode_inputs import DecodeInputs, list_choices
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.self_check import steps
from trioserve.model.step.layout import lay_out
from trioserve.model.step.plain import PlainRows
from trioserve.model.step.slots import SlotTables
from trioserve.types.ids import BlockId
from trioserve.types.plan import StepPlan, StepRow

from ...conftest import Tiny, load_oracle
from ...planning import Planner, make_prompt, make_start
from ..native.test_native_states import save
from .graphs import DEVICE, GRAPHS, capture, check_on_gpu

require_triton()

# Gated DeltaNet beside attention with gates; short convolutions; layers of one part, which is
# Mamba-2, attention, a network, or experts behind a narrow product; Mamba-2 and attention
# side by side, with factors; Kimi delta attention and latents; and Mamba-2 beside attention
# without rotation, or alone.
TYPES = ["qwen3_5_text", "lfm2", "nemotron_h", "falcon_h1", "kimi_linear"]
MORE = ["granitemoehybrid", "bamba", "mamba2"]
OTHERS = [*TYPES[1:], *MORE]
ALL = [*TYPES, *(pytest.param(each, marks=pytest.mark.matrix) for each in MORE)]

# Tiny beside the sizes of other tests: the interpreter takes a millisecond for each token and
# head.
_FEW_HEADS = {"mamba_n_heads": 4, "mamba_n_groups": 2}
_TINY: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2}
MAMBA2: dict[str, dict[str, Any]] = {
    "nemotron_h": {"hidden_size": 32, "mamba_num_heads": 4, "num_hidden_layers": None},
    "falcon_h1": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "mamba_d_ssm": 32,
        "mamba_n_heads": 2,
        "mamba_n_groups": 2,
    },
    "granitemoehybrid": {
        **(_TINY | _FEW_HEADS),
        "layer_types": ["linear_attention", "full_attention"],
        # Experts have tests of their own (test_decoder.py).
        "num_local_experts": 0,
    },
    "bamba": {**(_TINY | _FEW_HEADS), "attn_layer_indices": [1]},
    "mamba2": {**_TINY, "num_heads": 4},
}


@pytest.fixture(scope="module")
def build(
    tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Tiny]
) -> Callable[[str], Tiny]:
    """Build a tiny model of a type on Triton's kernels, once for all tests."""

    @functools.cache
    def build(model_type: str) -> Tiny:
        if model_type not in MAMBA2:
            model = tiny(model_type, DEVICE)
            return replace(model, loaded=_load(model.folder))
        changes = MAMBA2[model_type]
        folder = save(model_type, tmp_path_factory.mktemp(model_type), **changes)
        oracle = load_oracle(AutoModelForCausalLM, folder, DEVICE)
        return Tiny(folder=folder, loaded=_load(folder), oracle=oracle)

    return build


def _load(
    folder: Path,
    dtype: Literal["float32", "float16"] = "float32",
    ends: tuple[tuple[int, int], ...] = ((4, 2), (6, 3), (7, 4)),
) -> LoadedModel:
    from trioserve.model.runtimes.fused.decoder import FusedDecoder

    config = ModelConfig(device=DEVICE, dtype=dtype)
    loaded = load_modules(folder, config, read_facts(folder, config), "tiny")
    with pytest.MonkeyPatch.context() as patch:
        # The steps of a load would take a minute on the interpreter.
        patch.setattr(steps, "_choose_ends", lambda device, dtype: ends)
        decoder = make_decoder(
            loaded, lambda parts: FusedDecoder(parts, lambda: capture), int8=False
        )
    return replace(loaded, native=decoder)


@pytest.mark.parametrize("model_type", ALL)
def test_a_model_writes_what_generate_writes(
    build: Callable[[str], Any], model_type: str
) -> None:
    """In chunks, beside others, in the slot of a former sequence, and after a preemption."""
    model = build(model_type)
    planner = Planner(model.loaded)
    former = planner.begin(make_prompt(2), slot=0)
    planner.run(former, num_tokens=1)
    sequences = [planner.begin(make_prompt(5, slot), slot=slot) for slot in (0, 1)]
    planner.step((sequences[0], 3))
    planner.step((sequences[1], 4), (sequences[0], 2))
    planner.step((sequences[0], 1), (sequences[1], 1))
    planner.preempt(sequences[1], slot=2)
    planner.run(*sequences, num_tokens=2)
    model.check(former, *sequences)


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_load_compares_prompts_by_spans_in_16_bits(
    build: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """A chunk ends within a span, and the next one in another span."""
    from trioserve.kernels.triton import states
    from trioserve.kernels.triton.spans import prepare_spans

    folder, ends = build("qwen3_5_text").folder, ((3, 2), (66, 3))
    if not is_broken:
        assert _load(folder, "float16", ends).native is not None
        return

    class BrokenKernel:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **constants: Any) -> None:
                prepare_spans[grid](*args, **constants)
                scores = args[4]
                scores.zero_()

            return launch

    monkeypatch.setattr(states, "prepare_spans", BrokenKernel())
    with pytest.raises(OutputDiffers):
        _load(folder, "float16", ends)


class Steps:
    """Steps of two sequences with the same prompt, in slots 0 and 1, beside one copy."""

    def __init__(self, loaded: LoadedModel, num_tokens: int) -> None:
        self._tables = SlotTables(
            max_num_seqs=2,
            max_model_len=num_tokens,
            block_size=num_tokens,
            device=loaded.device,
            num_checkpoints=1,
        )
        for slot in (0, 1):
            prompt = make_prompt(num_tokens)
            self._tables.start(make_start(slot=slot, prompt=prompt))
        assert loaded.native is not None, "the kernels run it"
        self.layers = loaded.native.open(self._tables, num_blocks=2)
        self._embed = loaded.model.get_input_embeddings()

    @torch.inference_mode()
    def run(self, *rows: StepRow, held: tuple[int, ...] = ()) -> Tensor:
        """Run one step; returns the logits of all its tokens."""
        self._tables.append_blocks(rows)
        plan = StepPlan(step_id=0, starts=(), rows=rows)
        inputs = lay_out(
            plan, self._tables, self.layers.order, self._tables.block_ids.device, held
        )
        vectors = self._embed(inputs.input_ids)[0]
        tokens = range(len(vectors))
        if not inputs.has_chunks:
            output = self.layers.replay(inputs, tokens, vectors)
            if output is not None:
                return cast(Tensor, output).clone()
        return self.layers.run(vectors, inputs, tokens, inputs.position_ids)


def make_row(slot: int, begin: int, end: int, **others: Any) -> StepRow:
    return StepRow(
        slot=slot,
        start=begin,
        num_tokens=end - begin,
        new_block_ids=() if begin else (BlockId(slot),),
        sample=True,
        **others,
    )


# Padding computes with what its memory held before.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "model_type",
    [
        "qwen3_5_text",
        *(pytest.param(each, marks=pytest.mark.matrix) for each in OTHERS),
    ],
)
def test_graphs_leave_states_of_held_rows_and_of_padding_and_copies_move_them(
    build: Callable[[str], Tiny], model_type: str
) -> None:
    loaded = build(model_type).loaded
    expected = Steps(loaded, 4).run(make_row(0, 0, 4))
    steps = Steps(loaded, 4)
    steps.layers.prepare(2)
    num_graphs = len(GRAPHS)
    chunks = make_row(0, 0, 2, saves=0), make_row(1, 0, 2)
    steps.run(*chunks)
    copies = steps.layers.copies
    assert copies is not None, "the model has states"
    copies.save(chunks)
    # The last token of slot 0 comes again, and slot 1 is not in the second step.
    both = steps.run(make_row(0, 2, 3), make_row(1, 2, 3), held=(0,))
    torch.testing.assert_close(both, expected[[2, 2]], rtol=1e-4, atol=1e-4)
    alone = steps.run(make_row(0, 2, 3))
    torch.testing.assert_close(alone, expected[2:3], rtol=1e-4, atol=1e-4)
    both = steps.run(make_row(0, 3, 4), make_row(1, 3, 4))
    torch.testing.assert_close(both, expected[[3, 3]], rtol=1e-4, atol=1e-4)
    copies.restore([make_start(slot=1, restores=0)])
    again = steps.run(make_row(1, 2, 3))
    torch.testing.assert_close(again, expected[2:3], rtol=1e-4, atol=1e-4)
    assert sum(graph.num_replays for graph in GRAPHS[num_graphs - 2 :]) == 4


def test_rows_behind_a_batch_are_padding() -> None:
    """They have no tokens and keep nothing, whatever row was there before."""
    tables = SlotTables(
        max_num_seqs=3, max_model_len=4, block_size=4, device=torch.device(DEVICE)
    )
    mine = DecodeInputs(3, tables, has_states=True)
    for count in (3, 1):
        ones = np.ones(count)
        rows, decodes = (
            np.ones((count, width)) for width in (ROW_NUMBERS, TILE_NUMBERS)
        )
        mine.fill({"slots": ones, "rows": rows, "decodes": decodes, "places": ones})
        assert mine.tiles.rows is not None, "it has states"
        assert mine.tiles.rows.sum(dim=1).tolist() == [5] * count + [0] * (3 - count)
        assert mine.tiles.decodes.sum(dim=1).tolist()[count:] == [0] * (3 - count)
        for name in ("slots", "places", "block_places"):
            assert mine.numbers[name].tolist()[count:] == [-1] * (3 - count)


def test_rows_that_are_not_sampled_choose_nothing() -> None:
    plain = PlainRows(
        temperatures=np.array([0.5, 0.0], dtype=np.float32), keys=np.array([7, 0])
    )
    numbers = list_choices(plain, (2, 0), 3)
    assert numbers["places"].tolist() == [1, -1, 0]
    assert numbers["temperatures"].tolist() == [0.0, 0.0, 0.5]
    assert numbers["keys"].tolist() == [0, 0, 7]
    numbers = list_choices(replace(plain, settings=np.ones((2, 7))), (2, 0), 3)
    assert numbers["places"].tolist() == [1, -1, 0]
    assert numbers["settings"].sum(axis=1).tolist() == [7, 0, 7]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ALL)
def test_a_gpu_runs_the_kernels_in_graphs(
    build: Callable[[str], Tiny], model_type: str, dtype: Any
) -> None:
    check_on_gpu(build(model_type), dtype)
