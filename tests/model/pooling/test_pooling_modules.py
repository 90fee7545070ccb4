"""Modules after the pooling compute the same as sentence-transformers' modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from trioserve.config import PoolingConfig
from trioserve.errors import InvalidConfig, UnsupportedModel, WeightsBroken
from trioserve.types.sentence import SentenceFolder, SentenceModule

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        LayerNorm,
        Normalize,
    )

# Makes a Bench of conftest.py.
Make = Callable[..., Any]
HIDDEN_SIZE = 8

TEXT = [3, 1, 4]


@pytest.fixture(scope="module", autouse=True)
def oracle() -> None:
    """Import the oracle for these tests, and not in each process that collects them."""
    global Dense, LayerNorm, Normalize
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        LayerNorm,
        Normalize,
    )


def sentence_of(*modules: SentenceModule, **fields: Any) -> SentenceFolder:
    return SentenceFolder(modes=("mean",), modules=modules, **fields)


def dense(
    path: str = "dense", activation: str = "ReLU", **fields: Any
) -> SentenceModule:
    name = f"torch.nn.modules.activation.{activation}"
    return SentenceModule(kind="dense", path=path, activation=name, **fields)


def save(module: Any, folder: Path, *, safe: bool = True) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    module.save(str(folder), safe_serialization=safe)
    return module


def apply(table: Any, *modules: Any) -> Any:
    features = {"sentence_embedding": table.states[TEXT].mean(0, keepdim=True)}
    with torch.inference_mode():
        for module in modules:
            features = module(features)
    return features["sentence_embedding"][0].numpy()


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["Tanh", "GELU", "ReLU", "Sigmoid"])
def test_a_dense_layer_is_applied(
    bench: Make, table: Any, tmp_path: Path, safe: bool, bias: bool, activation: str
) -> None:
    function = getattr(torch.nn, activation)()
    oracle = Dense(HIDDEN_SIZE, 5, bias=bias, activation_function=function)
    save(oracle, tmp_path / "dense", safe=safe)
    model = bench(sentence_of(dense(activation=activation)))
    assert model.runner.info.num_outputs == 5
    expected = apply(table, oracle)
    np.testing.assert_allclose(model.run(TEXT)[0], expected, atol=1e-6)


@pytest.mark.parametrize("width", [HIDDEN_SIZE, 5])
def test_a_dense_layer_can_add_its_input(
    bench: Make, table: Any, tmp_path: Path, width: int
) -> None:
    oracle = Dense(HIDDEN_SIZE, width, use_residual=True)
    save(oracle, tmp_path / "dense")
    module = dense(activation="Tanh", adds_input=True)
    model = bench(sentence_of(module))
    np.testing.assert_allclose(model.run(TEXT)[0], apply(table, oracle), atol=1e-6)


def test_modules_are_applied_in_order(bench: Make, table: Any, tmp_path: Path) -> None:
    norm = LayerNorm(4)
    torch.nn.init.normal_(norm.norm.weight)
    torch.nn.init.normal_(norm.norm.bias)
    first = save(Dense(HIDDEN_SIZE, 4), tmp_path / "1")
    save(norm, tmp_path / "2")
    last = save(Dense(4, 6, activation_function=torch.nn.ReLU()), tmp_path / "3")
    sentence = sentence_of(
        dense("1", "Tanh"),
        SentenceModule(kind="layer_norm", path="2"),
        SentenceModule(kind="normalize"),
        dense("3", "ReLU"),
    )
    model = bench(sentence)
    expected = apply(table, first, norm, Normalize(), last)
    np.testing.assert_allclose(model.run(TEXT)[0], expected, atol=1e-6)
    assert not model.runner.info.normalizes


def test_vectors_are_normalized_where_the_files_say_so(bench: Make, table: Any) -> None:
    plain = bench(sentence_of())
    normal = bench(sentence_of(SentenceModule(kind="normalize")))
    [vector] = plain.run(TEXT)
    assert not plain.runner.info.normalizes and normal.runner.info.normalizes
    np.testing.assert_allclose(
        normal.run(TEXT)[0], apply(table, Normalize()), atol=1e-6
    )
    np.testing.assert_array_equal(normal.run(TEXT, use_activation=False)[0], vector)
    [normalized] = plain.run(TEXT, use_activation=True)
    np.testing.assert_allclose(normalized, vector / np.linalg.norm(vector), atol=1e-6)


def test_vectors_are_cut_before_they_are_normalized(bench: Make) -> None:
    model = bench(sentence_of(SentenceModule(kind="normalize")))
    [whole] = model.run(TEXT)
    [cut] = model.run(TEXT, dimensions=3)
    np.testing.assert_allclose(cut, whole[:3] / np.linalg.norm(whole[:3]), atol=1e-6)
    [plain] = model.run(TEXT, dimensions=3, use_activation=False)
    np.testing.assert_array_equal(plain, model.run(TEXT, use_activation=False)[0][:3])


def test_the_folders_own_cut_comes_last(bench: Make, table: Any) -> None:
    """As in sentence-transformers; a request may still normalise the cut vectors."""
    normalize = SentenceModule(kind="normalize")
    model = bench(sentence_of(normalize, truncate_dim=3))
    whole = apply(table, Normalize())
    assert model.runner.info.num_outputs == 3 and not model.runner.info.normalizes
    np.testing.assert_allclose(model.run(TEXT)[0], whole[:3], atol=1e-6)
    [normalized] = model.run(TEXT, use_activation=True)
    expected = whole[:3] / np.linalg.norm(whole[:3])
    np.testing.assert_allclose(normalized, expected, atol=1e-6)


def test_a_cut_beyond_the_vectors_does_nothing(bench: Make) -> None:
    normalize = SentenceModule(kind="normalize")
    model = bench(sentence_of(normalize, truncate_dim=999))
    info = model.runner.info
    assert info.num_outputs == HIDDEN_SIZE and info.normalizes


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "torch.nn.modules.linear.Linear",
        "torch.nn.modules.container.Sequential",
        "torch.nn.modules.activation.MultiheadAttention",
        "torch.nn.modules.activation.PReLU",
        "torch.nn.modules.activation.warnings",
        "torch.hub.load",
        "custom.Activation",
        "",
    ],
)
def test_only_torchs_activation_functions_are_built(
    bench: Make, tmp_path: Path, name: str
) -> None:
    save(Dense(HIDDEN_SIZE, 4), tmp_path / "dense")
    module = SentenceModule(kind="dense", path="dense", activation=name)
    with pytest.raises(UnsupportedModel, match="activation function"):
        bench(sentence_of(module))


def test_missing_weights_are_named(bench: Make) -> None:
    with pytest.raises(WeightsBroken, match="dense has neither model.safetensors"):
        bench(sentence_of(dense()))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_broken_weights_are_named(bench: Make, tmp_path: Path, name: str) -> None:
    (tmp_path / "dense").mkdir()
    (tmp_path / "dense" / name).write_bytes(b"not a tensor")
    with pytest.raises(WeightsBroken, match="dense: "):
        bench(sentence_of(dense()))


def test_a_pickle_is_not_run(bench: Make, tmp_path: Path) -> None:
    (tmp_path / "dense").mkdir()
    torch.save({"linear.weight": Path("/tmp")}, tmp_path / "dense/pytorch_model.bin")
    with pytest.raises(WeightsBroken, match="does not hold tensors alone"):
        bench(sentence_of(dense()))


def test_weights_of_another_shape_are_named(bench: Make, tmp_path: Path) -> None:
    save(Dense(HIDDEN_SIZE + 1, 4), tmp_path / "dense")
    with pytest.raises(WeightsBroken, match="linear.weight is 4x9, not anyx8"):
        bench(sentence_of(dense()))


def test_weights_of_another_module_are_named(bench: Make, tmp_path: Path) -> None:
    save(LayerNorm(HIDDEN_SIZE), tmp_path / "dense")
    with pytest.raises(WeightsBroken, match="dense has no tensor linear.weight"):
        bench(sentence_of(dense()))


def test_an_option_that_does_not_fit_the_modules_is_named(
    bench: Make, tmp_path: Path
) -> None:
    save(Dense(2 * HIDDEN_SIZE, 4), tmp_path / "dense")
    sentence = SentenceFolder(modes=("cls", "mean"), modules=(dense(),))
    bench(sentence)
    with pytest.raises(InvalidConfig, match="--pooling"):
        bench(sentence, PoolingConfig(pooling="cls"))
