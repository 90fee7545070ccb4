"""Each task gives the results that its description promises."""

from __future__ import annotations

from array import array
from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from trioserve.config import PoolingConfig
from trioserve.errors import InvalidConfig, WeightsBroken
from trioserve.types.pooling import PoolingInfo, PoolingInput
from trioserve.types.sentence import PoolingMode, SentenceFolder, SentenceModule

# Makes a Bench of conftest.py.
Make = Callable[..., Any]
HIDDEN_SIZE = 8
VOCAB_SIZE = 50

NORMALIZE = (SentenceModule(kind="normalize"),)
LABELS = ("good", "bad", "ugly")


@pytest.fixture
def head() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(HIDDEN_SIZE, len(LABELS))


@pytest.fixture
def classifier(bench: Make, head: Any) -> Make:
    """Make a runner of a classifier; arguments are fields of LoadedEncoder."""

    def make(**changes: Any) -> Any:
        fields = {"head": head, "head_mode": "cls", "activation": "softmax"}
        return bench(**{"task": "classify", "labels": LABELS, **fields, **changes})

    return make


def test_the_description_of_an_embedder(bench: Make) -> None:
    model = bench(type_ids=True)
    assert model.runner.info == PoolingInfo(
        task="embed",
        tasks=("embed", "token_embed"),
        num_outputs=HIDDEN_SIZE,
        type_ids=True,
    )


def test_the_description_of_a_classifier(classifier: Make) -> None:
    model = classifier()
    assert model.runner.info == PoolingInfo(
        task="classify",
        tasks=("classify",),
        num_outputs=3,
        labels=LABELS,
        normalizes=False,
    )


@pytest.mark.parametrize("mode", ["cls", "lasttoken", "mean"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_texts_are_classified(
    classifier: Make, table: Any, head: Any, mode: PoolingMode, activation: Any
) -> None:
    model = classifier(head_mode=mode, activation=activation)
    texts = [[1, 2, 3], [4]]
    states = [table.states[text] for text in texts]
    rows = {"cls": 0, "lasttoken": -1}
    pooled = [s.mean(0) if mode == "mean" else s[rows[mode]] for s in states]
    logits = head(torch.stack(pooled)).detach()
    functions: Any = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid}
    scores = functions.get(activation, lambda x: x)(logits)
    np.testing.assert_allclose(model.run(*texts), scores, rtol=1e-5)
    np.testing.assert_allclose(
        model.run(*texts, use_activation=False), logits, rtol=1e-5, atol=1e-6
    )


def test_a_head_reads_states_of_the_models_type(classifier: Make, table: Any) -> None:
    """Its weights have the model's type."""
    head = torch.nn.Linear(HIDDEN_SIZE, len(LABELS), dtype=torch.bfloat16)
    table.states = table.states.bfloat16()
    model = classifier(head=head)
    [scores] = model.run([1, 2])
    assert scores.sum() == pytest.approx(1.0)


def test_tokens_are_classified(classifier: Make, table: Any, head: Any) -> None:
    model = classifier(task="token_classify", head_mode=None)
    left_out = PoolingInput(token_ids=array("i", [4, 5, 6]), left_out=(0, 2))
    first, second = model.run([1, 2, 3], left_out)
    expected = head(table.states).softmax(-1).detach()
    np.testing.assert_allclose(first, expected[[1, 2, 3]], rtol=1e-5)
    np.testing.assert_allclose(second, expected[[5]], rtol=1e-5)


def test_an_embedders_token_vectors_are_those_before_the_pooling(
    bench: Make, table: Any
) -> None:
    plain = bench(SentenceFolder(modes=("mean",)))
    normal = bench(SentenceFolder(modes=("cls",), modules=NORMALIZE))
    unit = normalize(table.states[[3, 1]])
    [states] = plain.run([3, 1], task="token_embed")
    np.testing.assert_array_equal(states, table.states[[3, 1]])
    [normalized] = plain.run([3, 1], task="token_embed", use_activation=True)
    np.testing.assert_allclose(normalized, unit, rtol=1e-5)
    [normalized] = normal.run([3, 1], task="token_embed")
    np.testing.assert_allclose(normalized, unit, rtol=1e-5)
    [states] = normal.run([3, 1], task="token_embed", use_activation=False)
    np.testing.assert_array_equal(states, table.states[[3, 1]])


def test_tokens_of_a_colbert_checkpoint_are_projected(bench: Make, table: Any) -> None:
    projection = torch.randn(4, HIDDEN_SIZE)
    sentence = SentenceFolder(modules=NORMALIZE)
    model = bench(sentence, task="token_embed", projection=projection)
    info = model.runner.info
    assert (info.tasks, info.num_outputs) == (("token_embed",), 4)
    text = PoolingInput(token_ids=array("i", [3, 1, 7]), left_out=(1,))
    expected = normalize(table.states[[3, 7]] @ projection.T)
    np.testing.assert_allclose(model.run(text)[0], expected, rtol=1e-5, atol=1e-6)


def test_an_embedder_of_tokens_only_does_not_pool(bench: Make, table: Any) -> None:
    """Its Dense layers read pooled vectors; they are not even loaded."""
    modules = (SentenceModule(kind="dense", path="missing"), *NORMALIZE)
    sentence = SentenceFolder(modes=("mean",), modules=modules)
    model = bench(sentence, task="token_embed")
    [vectors] = model.run([3, 1])
    np.testing.assert_allclose(vectors, normalize(table.states[[3, 1]]), rtol=1e-5)


def test_a_step_may_hold_all_kinds_of_rows(bench: Make, row: Any) -> None:
    model = bench()
    answers = model.step(
        [
            row([1, 2, 3], task="token_embed"),
            row([1, 2, 3], task="embed", dimensions=2),
            row([4], task="embed"),
            row([4], task="embed", keep_as=9),
            row([5], task="token_embed"),
            row([4], task="embed", compare_with=9),
            row([1], task="embed", dimensions=2),
        ]
    )
    shapes = [answer.shape for answer in answers]
    assert shapes == [(3, 8), (2,), (8,), (0,), (1, 8), (), (2,)]
    alone = [
        model.run([1, 2, 3], task="token_embed"),
        model.run([1, 2, 3], dimensions=2),
        model.run([4]),
    ]
    for together, [one] in zip(answers, alone):
        np.testing.assert_allclose(together, one, rtol=1e-5)


def test_an_input_without_vectors_gives_an_empty_matrix(bench: Make) -> None:
    model = bench()
    text = PoolingInput(token_ids=array("i", [3]), left_out=(0,))
    [vectors] = model.run(text, task="token_embed")
    assert vectors.shape == (0, HIDDEN_SIZE)


@pytest.mark.parametrize(
    "model, option, sizes",
    [
        ({}, False, None),
        ({}, True, ()),
        ({"is_matryoshka": True}, False, ()),
        ({"is_matryoshka": False}, False, None),
        ({"matryoshka_dimensions": [4, 2]}, False, (4, 2)),
        ({"is_matryoshka": True, "matryoshka_dimensions": [4]}, False, (4,)),
        ({"matryoshka_dimensions": [4]}, True, ()),
    ],
)
def test_sizes_come_from_the_model_or_the_option(
    bench: Make, tmp_path: Path, model: Any, option: bool, sizes: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model))
    model = bench(None, PoolingConfig(matryoshka=option))
    assert model.runner.info.matryoshka == sizes


@pytest.mark.parametrize("sizes", ["4", [4, "2"], [0], [True]])
def test_sizes_that_are_none_are_refused(
    bench: Make, tmp_path: Path, sizes: Any
) -> None:
    model = {"matryoshka_dimensions": sizes}
    (tmp_path / "config.json").write_text(json.dumps(model))
    with pytest.raises(WeightsBroken, match="matryoshka_dimensions"):
        bench()


@pytest.mark.parametrize("task", ["classify", "token_classify", "token_embed"])
@pytest.mark.parametrize("options", [{"pooling": "cls"}, {"matryoshka": True}])
def test_options_of_embedders_are_refused_elsewhere(
    bench: Make, head: Any, task: Any, options: Any
) -> None:
    with pytest.raises(InvalidConfig, match=f"--{next(iter(options))}"):
        bench(
            None,
            PoolingConfig(**options),
            task=task,
            head=head,
            head_mode="cls",
        )


@pytest.mark.parametrize("task", ["embed", "classify", "token_classify"])
def test_warming_up_leaves_nothing_behind(classifier: Make, task: Any) -> None:
    model = classifier(task=task)
    model.runner.warm_up()
    assert model.step([]) == []
    assert model.num_kept == 0
