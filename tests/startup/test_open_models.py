"""Several models in a program, with engines in its own process."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, rmtree

import pytest

import trioserve
from trioserve.config import EngineConfig, ModelConfig, ModelsConfig, ServedModel
from trioserve.errors import InvalidConfig, ModelFailed, ModelNotFound
from trioserve.startup.models import make_router
from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer


async def test_models_are_loaded_and_leave_in_a_program(tmp_path: Path) -> None:
    save_tiny_model(
        *("llama", tmp_path / "tiny"), vocab_size=512, bos_token_id=0, eos_token_id=1
    )
    folder = str(tiny_tokenizer(tmp_path / "tiny"))
    small = {"model": folder, "kv_cache_memory": "1MiB", "max_model_len": 64}
    gone = copytree(folder, tmp_path / "gone")
    models = {"a": small, "b": small, "gone": str(gone)}
    # The weights take less than half of a mebibyte: one model fits beside its cache.
    async with trioserve.open_models(
        models, process=False, memory="2MiB", min_residence=0
    ) as router:
        for name in ("a", "b", "a"):
            async with router.hold(name) as engine:
                assert engine.info.name == name
                assert isinstance(engine, trioserve.TextEngine)
                async with engine.open_completion(
                    "Hi", max_tokens=2, ignore_eos=True
                ) as deltas:
                    [answer] = await deltas.collect()
                    assert answer.finish_reason == "length"
            loaded = [each.entry.name for each in router.describe() if each.engine]
            assert loaded == [name]
        rmtree(gone)
        with pytest.raises(ModelFailed, match="no such file or folder"):
            async with router.hold("gone"):
                pass
        with pytest.raises(ModelNotFound):
            async with router.hold("c"):
                pass


def test_caches_without_a_size_divide_half_of_the_memory() -> None:
    models = [
        ServedModel.of(name, EngineConfig(model=ModelConfig(model=name)), preload=False)
        for name in "ab"
    ]
    router = make_router(models, ModelsConfig(memory="8GiB"), process=False)
    # The files are not there.
    assert [each.entry.num_bytes for each in router.describe()] == [2 * 2**30] * 2


async def test_wrong_options_are_told_as_keywords() -> None:
    with pytest.raises(InvalidConfig, match="^memory: 'much' is not a size"):
        async with trioserve.open_models({"a": "x"}, memory="much"):
            pass
    with pytest.raises(InvalidConfig, match="^max_num_seq: there is no such option"):
        async with trioserve.open_models({"a": {"model": "x", "max_num_seq": 1}}):
            pass
    for wrong in (3, None, {"dtype": "float32"}):
        with pytest.raises(InvalidConfig, match="^models: 'a': .* is neither a model"):
            async with trioserve.open_models({"a": wrong}):  # type: ignore[dict-item]
                pass
    same = {"model": "x", "served_model_name": ["same"]}
    with pytest.raises(InvalidConfig, match="^models: two of them are called 'same'$"):
        async with trioserve.open_models({"a": same, "b": same}):
            pass
