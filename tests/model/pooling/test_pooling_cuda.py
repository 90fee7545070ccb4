"""Pooling gives the same numbers on a GPU as on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from trioserve.types.sentence import PoolingMode, SentenceFolder, SentenceModule

Make = Callable[..., Any]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODES: tuple[PoolingMode, ...] = (
    *("cls", "lasttoken", "max"),
    *("mean", "mean_sqrt_len_tokens", "weightedmean"),
)
NORMALIZE = (SentenceModule(kind="normalize"),)
TEXTS = [[1, 2, 3], [4], [5] * 200, [6, 7]]


def test_texts_are_pooled_on_the_device(bench: Make, table: Any) -> None:
    sentence = SentenceFolder(modes=MODES, modules=NORMALIZE)
    expected = bench(sentence).run(*TEXTS)
    table.states = table.states.cuda()
    np.testing.assert_allclose(bench(sentence).run(*TEXTS), expected, atol=1e-6)


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_texts_are_compared_on_the_device(
    bench: Make, table: Any, row: Any, task: Any
) -> None:
    rows = [row(TEXTS[0], task=task, keep_as=1)]
    rows += [row(text, task=task, compare_with=1) for text in TEXTS]
    modes: tuple[PoolingMode, ...] = ("mean",) if task == "embed" else ()
    sentence = SentenceFolder(modes=modes, modules=NORMALIZE)
    _, *expected = bench(sentence, task=task).step(rows)
    table.states = table.states.cuda()
    _, *scores = bench(sentence, task=task).step(rows)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
