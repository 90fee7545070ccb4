"""Results stay on the device, are compared with other results, and are forgotten."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any
import weakref

import numpy as np
from numpy.typing import NDArray
import pytest
import torch

from trioserve.model.pooling.query_cache import QueryCache, compare_matrices
from trioserve.types.pooling import PoolingInput
from trioserve.types.sentence import SentenceFolder, SentenceModule

# Makes a Bench of conftest.py.
Make = Callable[..., Any]
Floats = NDArray[np.float32]
HIDDEN_SIZE = 8

QUERY = [1, 2]
DOCUMENTS = [[3, 4, 5], [6], [1, 2]]
NORMALIZE = (SentenceModule(kind="normalize"),)


@pytest.fixture
def vectors(bench: Make) -> Any:
    """Return a model that does not normalise; cosines must be right all the same."""
    return bench(SentenceFolder(modes=("mean",)))


@pytest.fixture
def matrices(bench: Make) -> Any:
    sentence = SentenceFolder(modules=NORMALIZE)
    return bench(sentence, task="token_embed")


def cosine(left: Floats, right: Floats) -> float:
    product = float(left @ right)
    return product / float(np.linalg.norm(left) * np.linalg.norm(right))


def compare_with_oracle(query: Floats, documents: list[Floats]) -> Floats:
    from sentence_transformers.util import maxsim

    scores: Floats = maxsim(
        [torch.tensor(query)], [torch.tensor(document) for document in documents]
    )[0].numpy()
    return scores


def test_vectors_are_compared_by_their_cosine(vectors: Any, row: Any) -> None:
    query, *documents = vectors.run(QUERY, *DOCUMENTS)
    [kept] = vectors.step([row(QUERY, task="embed", keep_as=1)])
    assert kept.shape == (0,) and vectors.num_kept == 1
    scores = vectors.step(
        [row(document, task="embed", compare_with=1) for document in DOCUMENTS]
    )
    assert [score.shape for score in scores] == [()] * 3
    expected = [cosine(query, document) for document in documents]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_pairs_are_compared_each_with_its_own(vectors: Any, row: Any) -> None:
    made = vectors.run(*DOCUMENTS)
    vectors.step(
        [row(text, task="embed", keep_as=i) for i, text in enumerate(DOCUMENTS)]
    )
    order = [2, 0, 1]
    scores = vectors.step(
        [row(QUERY, task="embed", compare_with=number) for number in order]
    )
    [query] = vectors.run(QUERY)
    expected = [cosine(query, made[number]) for number in order]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_cut_vectors_are_compared_as_such(vectors: Any, row: Any) -> None:
    query, document = vectors.run(QUERY, DOCUMENTS[0], dimensions=3)
    [_, score] = vectors.step(
        [
            row(QUERY, task="embed", dimensions=3, keep_as=1),
            row(DOCUMENTS[0], task="embed", dimensions=3, compare_with=1),
        ]
    )
    assert score == pytest.approx(cosine(query, document), abs=1e-6)


def test_matrices_are_compared_by_maxsim(matrices: Any, row: Any) -> None:
    query, *documents = matrices.run(QUERY, *DOCUMENTS)
    matrices.step([row(QUERY, task="token_embed", keep_as=1)])
    scores = matrices.step(
        [row(text, task="token_embed", compare_with=1) for text in DOCUMENTS]
    )
    expected = compare_with_oracle(query, documents)
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_the_order_of_rows_does_not_matter(matrices: Any, row: Any) -> None:
    """A document may come before the query that it is compared with."""
    rows = [
        row(DOCUMENTS[0], task="token_embed", compare_with=2),
        row(DOCUMENTS[1], task="token_embed"),
        row(QUERY, task="token_embed", keep_as=1),
        row(DOCUMENTS[0], task="token_embed", compare_with=1),
        row(DOCUMENTS[2], task="token_embed", keep_as=2),
        row(DOCUMENTS[1], task="token_embed", compare_with=1),
    ]
    answers = matrices.step(rows)
    query, *documents = matrices.run(QUERY, *DOCUMENTS)
    first, second, _ = compare_with_oracle(query, documents)
    assert answers[3] == pytest.approx(first, abs=1e-6)
    assert answers[5] == pytest.approx(second, abs=1e-6)
    np.testing.assert_array_equal(answers[1], documents[1])
    # DOCUMENTS[2] equals QUERY.
    assert answers[0] == pytest.approx(first, abs=1e-6)


def test_a_document_without_vectors_is_similar_to_nothing(
    matrices: Any, row: Any
) -> None:
    matrices.step([row(QUERY, task="token_embed", keep_as=1)])
    empty = PoolingInput(token_ids=array("i", [7, 8]), left_out=(0, 1))
    texts = [empty, PoolingInput(token_ids=array("i", QUERY)), empty]
    scores = matrices.step(
        [row(text, task="token_embed", compare_with=1) for text in texts]
    )
    np.testing.assert_allclose(scores, [0, 2, 0], atol=1e-6)


def test_maxsim_can_be_an_average(bench: Make, row: Any) -> None:
    sentence = SentenceFolder(modules=NORMALIZE, averages_similarity=True)
    model = bench(sentence, task="token_embed")
    [_, score] = model.step(
        [
            row(QUERY, task="token_embed", keep_as=1),
            row(QUERY, task="token_embed", compare_with=1),
        ]
    )
    assert score == pytest.approx(1.0)


@pytest.mark.parametrize("max_scores", [1, 5, 7, 12, 1000])
def test_maxsim_needs_no_more_memory_than_it_is_given(max_scores: int) -> None:
    """The scores do not depend on the size of the pieces."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, HIDDEN_SIZE, generator=generator)
    documents = [torch.randn(n, HIDDEN_SIZE, generator=generator) for n in (3, 1, 2)]
    scores = compare_matrices(query, documents, max_scores=max_scores)
    expected = [(query @ document.T).amax(dim=1).sum() for document in documents]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_released_queries_are_forgotten(vectors: Any, row: Any) -> None:
    """A key that was never kept can be released, too."""
    vectors.step([row(QUERY, task="embed", keep_as=key) for key in (1, 2, 3)])
    assert vectors.num_kept == 3
    [score] = vectors.step(
        [row(QUERY, task="embed", compare_with=2)], releases=[1, 3, 5]
    )
    assert vectors.num_kept == 1 and score == pytest.approx(1.0)
    vectors.step([], releases=[2])
    assert vectors.num_kept == 0


def test_a_kept_query_does_not_hold_the_rest_of_its_step(row: Any) -> None:
    kept = QueryCache(torch.device("cpu"), averages_similarity=False)
    step = torch.zeros(1000, HIDDEN_SIZE)
    watch = weakref.ref(step)
    kept.keep([row(QUERY, task="embed", keep_as=1)], {0: step[0]})
    del step
    assert len(kept) == 1 and watch() is None


def test_a_returned_vector_does_not_hold_the_rest_of_its_step(vectors: Any) -> None:
    """Otherwise a slow client would keep the vectors of all clients in memory."""
    for vector in vectors.run(QUERY, *DOCUMENTS):
        root = vector.base
        while isinstance(root, np.ndarray):
            root = root.base
        assert isinstance(root, bytes) and len(root) == HIDDEN_SIZE * 4
