"""Each stage runs its part of an adapter, and together they write what the whole model writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trioserve.errors import InvalidAdapter

from ..adapters.trained import IGNORED, Adapted, train
from .test_pipeline import SIZES, make_prompts, make_sequences, write_all

pytestmark = IGNORED

ADAPTERS = (1, 0, 2)


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_stages_write_with_adapters_what_the_whole_model_writes(
    cut: Callable[..., Any],
    make_pipeline: Any,
    needs_kernels: None,
    tmp_path: Path,
    kernels: str,
) -> None:
    model = cut("qwen2")
    adapted = Adapted(
        model.folder,
        {
            1: train(model.folder, tmp_path / "1", seed=1, use_dora=True),
            2: train(
                model.folder,
                tmp_path / "2",
                seed=2,
                target_modules=["lm_head", "up_proj"],
            ),
        },
    )
    expected = adapted.write(model.loaded, make_prompts(), ADAPTERS)
    pipeline = make_pipeline(model.stages(3, kernels), **SIZES, max_model_len=64)
    for number, num_tensors in ((1, 3 * 4), (2, 3 + 1)):
        facts = [adapted.load(runner, number) for runner in pipeline.runners]
        assert all(each.digest == facts[0].digest for each in facts)
        unmatched = [{*each.unmatched} for each in facts]
        assert not set.intersection(*unmatched), "each tensor has a stage"
        assert [len(each) for each in unmatched] == [
            num_tensors - own for own in ((4, 4, 4) if number == 1 else (1, 1, 2))
        ]
    sequences = make_sequences(make_prompts(), adapters=ADAPTERS)
    assert write_all(pipeline.launch, sequences, depth=4) == expected


def test_a_stage_refuses_a_tensor_of_another_shape(
    cut: Callable[..., Any], make_pipeline: Any, tmp_path: Path
) -> None:
    base = cut("qwen2", num_key_value_heads=2)
    folder = train(base.folder, tmp_path, target_modules=["k_proj"])
    pipeline = make_pipeline(cut("qwen2").stages(3), **SIZES, max_model_len=64)
    # Its keys are narrower.
    with pytest.raises(InvalidAdapter, match="k_proj.lora_B has the shape"):
        Adapted(base.folder, {1: folder}).load(pipeline.runners[1], 1)
