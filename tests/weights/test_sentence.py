"""The files of sentence-transformers, PyLate and ColBERT are read correctly."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import string
from typing import Any

import pytest

from trioserve.errors import UnsupportedModel, WeightsBroken
from trioserve.types.sentence import QueryExpansion, SentenceFolder, SentenceModule
from trioserve.weights import read_sentence_folder

Write = Callable[..., Path]

NORMALIZE = SentenceModule(kind="normalize")
TANH = "torch.nn.modules.activation.Tanh"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write JSON files into a folder; keys are their paths."""

    def write(files: dict[str, Any], *types: str | tuple[str, str]) -> Path:
        """Args: types: classes of modules.json, or (class, path)."""
        lines = []
        for index, line in enumerate(types):
            type, path = line if isinstance(line, tuple) else (line, "")
            lines.append({"idx": index, "name": str(index), "path": path, "type": type})
        if lines:
            files = {"modules.json": lines, **files}
        for name, content in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            file.write_text(text)
        return tmp_path

    return write


def read(folder: Path) -> SentenceFolder:
    sentence = read_sentence_folder(folder)
    assert sentence is not None
    return sentence


OLD = "sentence_transformers.models."
BASE = "sentence_transformers.base.modules."
NEW = "sentence_transformers.sentence_transformer.modules."
MASK = (
    "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask."
    "MultiVectorMask"
)


CONFIG = "config_sentence_transformers.json"
BERT = "sentence_bert_config.json"
TRANSFORMER, POOLING = OLD + "Transformer", OLD + "Pooling"
POOLED = (TRANSFORMER, (POOLING, "p"))
CROSS = {CONFIG: {"model_type": "CrossEncoder"}}
PUNCTUATION = tuple(string.punctuation)
LATE = {CONFIG: {"model_type": "MultiVectorEncoder"}}


def test_a_folder_of_transformers_alone_has_no_settings(write: Write) -> None:
    assert read_sentence_folder(write({"config.json": {}})) is None


def test_the_folder_of_all_minilm_is_read(write: Write) -> None:
    folder = write(
        {
            BERT: {"max_seq_length": 256, "do_lower_case": False},
            CONFIG: {"__version__": {}},
            "tokenizer_config.json": {"model_max_length": 512},
            "1_Pooling/config.json": {
                "word_embedding_dimension": 384,
                "pooling_mode_cls_token": False,
                "pooling_mode_mean_tokens": True,
                "pooling_mode_max_tokens": False,
                "pooling_mode_mean_sqrt_len_tokens": False,
            },
        },
        TRANSFORMER,
        (POOLING, "1_Pooling"),
        (OLD + "Normalize", "2_Normalize"),
    )
    assert read(folder) == SentenceFolder(
        max_seq_length=256, modes=("mean",), modules=(NORMALIZE,)
    )


def test_all_settings_of_a_folder_are_read(write: Write) -> None:
    folder = write(
        {
            "0_BERT/sentence_roberta_config.json": {
                "max_seq_length": 99,
                "do_lower_case": True,
            },
            "1_Pooling/config.json": {
                "pooling_mode": "lasttoken",
                "include_prompt": False,
            },
            "2_Dense/config.json": {
                "in_features": 8,
                "out_features": 4,
                "bias": True,
                "activation_function": "torch.nn.modules.linear.Identity",
                "use_residual": True,
            },
            CONFIG: {
                "prompts": {"query": "q: ", "document": "", "empty": None},
                "default_prompt_name": "query",
                "truncate_dim": 2,
            },
        },
        (OLD + "BERT", "0_BERT"),
        (NEW + "pooling.Pooling", "1_Pooling"),
        (BASE + "dense.Dense", "2_Dense"),
        (NEW + "dropout.Dropout", "3_Dropout"),
        (NEW + "layer_norm.LayerNorm", "4_LayerNorm"),
        (BASE + "normalize.Normalize", "5_Normalize"),
        (OLD + "Dense.Dense", "6_Dense"),
    )
    assert read(folder) == SentenceFolder(
        transformer_path="0_BERT",
        max_seq_length=99,
        lowercases=True,
        modes=("lasttoken",),
        pools_prompts=False,
        modules=(
            SentenceModule(kind="dense", path="2_Dense", adds_input=True),
            SentenceModule(kind="layer_norm", path="4_LayerNorm"),
            NORMALIZE,
            SentenceModule(kind="dense", path="6_Dense", activation=TANH),
        ),
        prompts={"query": "q: ", "document": ""},
        default_prompt="query",
        truncate_dim=2,
    )


@pytest.mark.parametrize(
    "config, modes",
    [
        ({}, ("mean",)),
        ({"pooling_mode_cls_token": False}, ("mean",)),
        (
            {
                "pooling_mode_lasttoken": True,
                "pooling_mode_mean_tokens": True,
                "pooling_mode_weightedmean_tokens": True,
                "pooling_mode_max_tokens": True,
                "pooling_mode_mean_sqrt_len_tokens": True,
                "pooling_mode_cls_token": True,
            },
            "cls max mean mean_sqrt_len_tokens weightedmean lasttoken".split(),
        ),
        ({"pooling_mode": "max", "pooling_mode_cls_token": True}, ("max",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
    ],
)
def test_modes_are_put_side_by_side_as_sentence_transformers_does(
    write: Write, config: dict[str, Any], modes: Any
) -> None:
    folder = write({"p/config.json": config}, *POOLED)
    assert read(folder).modes == tuple(modes)


@pytest.mark.parametrize(
    "own, tokenizer, length",
    [
        ({}, {"model_max_length": 77}, 77),
        ({}, {"model_max_length": 1e30}, None),
        ({}, {"model_max_length": int(1e30)}, None),
        ({"max_seq_length": None}, {}, None),
        ({"max_seq_length": 300}, {"model_max_length": 77}, 300),
        ({"tokenizer_args": {"model_max_length": 5}, "max_seq_length": 300}, {}, 5),
    ],
)
def test_the_length_comes_from_where_sentence_transformers_takes_it(
    write: Write, own: Any, tokenizer: Any, length: int | None
) -> None:
    folder = write(
        {"p/config.json": {}, BERT: own, "tokenizer_config.json": tokenizer}, *POOLED
    )
    assert read(folder).max_seq_length == length


def test_a_folder_for_late_interaction_is_read(write: Write) -> None:
    token_level = {"module_input_name": "token_embeddings"}
    expansion = {"strategy": "min", "attend": True, "token": "[PAD]", "length": 16}
    folder = write(
        {
            BERT: {
                "query_length": 24,
                "document_length": 180,
                "query_expansion": expansion,
            },
            "tokenizer_config.json": {"model_max_length": 128},
            "1_Dense/config.json": {
                "activation_function": "torch.nn.modules.linear.Identity"
            },
            "2_MultiVectorMask/config.json": {
                "skiplist_words": [".", ","],
                "skiplist_tasks": ["document"],
                "keep_only_token_ids": None,
            },
            "3_Normalize/config.json": token_level,
            CONFIG: {
                "model_type": "MultiVectorEncoder",
                "prompts": {"query": "[Q] ", "document": None},
                "default_prompt_name": None,
                "similarity_fn_name": "meanmaxsim",
            },
        },
        BASE + "transformer.Transformer",
        (BASE + "dense.Dense", "1_Dense"),
        (MASK, "2_MultiVectorMask"),
        (BASE + "normalize.Normalize", "3_Normalize"),
    )
    assert read(folder) == SentenceFolder(
        max_seq_length=180,
        modules=(SentenceModule(kind="dense", path="1_Dense"), NORMALIZE),
        prompts={"query": "[Q] "},
        query_length=24,
        document_length=180,
        query_expansion=QueryExpansion(
            length=16, is_limit=False, token="[PAD]", is_seen=True
        ),
        skipped_words=(".", ","),
        averages_similarity=True,
    )


PYLATE = {
    "model_type": "ColBERT",
    "prompts": {"document": "about: "},
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 20,
    "document_length": 300,
    "attend_to_expansion_tokens": False,
}


@pytest.mark.parametrize("has_type", [True, False])
def test_a_folder_of_pylate_is_read(write: Write, has_type: bool) -> None:
    config = {**PYLATE} if has_type else {**PYLATE, "model_type": None}
    folder = write(
        {
            BERT: {"max_seq_length": 299},
            "1_Dense/config.json": {
                "module_input_name": "sentence_embedding",
                "activation_function": "torch.nn.modules.linear.Identity",
            },
            CONFIG: config,
        },
        TRANSFORMER,
        ("pylate.models.Dense.Dense", "1_Dense"),
    )
    assert read(folder) == SentenceFolder(
        max_seq_length=300,
        modules=(SentenceModule(kind="dense", path="1_Dense"), NORMALIZE),
        prompts={"query": "[Q] ", "document": "[D] about: "},
        query_length=299,
        document_length=300,
        query_expansion=QueryExpansion(length=20),
        skipped_words=PUNCTUATION,
        special_words=("[Q] ", "[Q]", "[D] ", "[D]"),
    )


@pytest.mark.parametrize(
    "changes, expansion, query_length, skipped",
    [
        ({"do_query_expansion": False}, None, 20, PUNCTUATION),
        ({"query_expansion": None}, None, 20, PUNCTUATION),
        ({"query_length": None}, QueryExpansion(length=32), None, PUNCTUATION),
        (
            {"attend_to_expansion_tokens": True, "skiplist_words": []},
            QueryExpansion(length=20, is_seen=True),
            None,
            (),
        ),
    ],
)
def test_all_settings_of_pylate_are_read(
    write: Write, changes: Any, expansion: Any, query_length: Any, skipped: Any
) -> None:
    sentence = read(write({CONFIG: {**PYLATE, **changes}}, TRANSFORMER))
    assert sentence.query_expansion == expansion
    assert sentence.query_length == query_length
    assert sentence.skipped_words == skipped


def test_a_checkpoint_of_stanfords_colbert_is_read(write: Write) -> None:
    folder = write(
        {
            "config.json": {"architectures": ["HF_ColBERT"]},
            "tokenizer_config.json": {"model_max_length": 512},
            "artifact.metadata": {
                "query_token_id": "[unused7]",
                "doc_maxlen": 180,
                "query_maxlen": 48,
                "attend_to_mask_tokens": True,
                "mask_punctuation": False,
            },
        }
    )
    assert read(folder) == SentenceFolder(
        max_seq_length=512,
        modules=(NORMALIZE,),
        prompts={"query": "[unused7] ", "document": "[unused1] "},
        query_length=512,
        document_length=180,
        query_expansion=QueryExpansion(length=48, is_seen=True),
        special_words=("[unused7] ", "[unused7]", "[unused1] ", "[unused1]"),
    )
    # Without the file, its defaults hold.
    (folder / "artifact.metadata").unlink()
    sentence = read(folder)
    assert sentence.query_expansion == QueryExpansion(length=32)
    assert sentence.skipped_words == PUNCTUATION
    assert sentence.prompts == {"query": "[unused0] ", "document": "[unused1] "}


def test_a_cross_encoder_is_a_classifier_like_others(write: Write) -> None:
    folder = write(
        {**CROSS, BERT: {"transformer_task": "sequence-classification"}},
        BASE + "transformer.Transformer",
    )
    assert read_sentence_folder(folder) is None


@pytest.mark.parametrize(
    "files, types, name",
    [
        ({}, [TRANSFORMER, OLD + "LSTM"], "LSTM"),
        ({}, [OLD + "WordEmbeddings"], "WordEmbeddings"),
        ({}, [OLD + "CLIPModel"], "CLIPModel"),
        ({}, [BASE + "router.Router"], "Router"),
        ({}, ["custom_st.Transformer"], "custom_st.Transformer"),
        ({}, [TRANSFORMER, TRANSFORMER], "Transformer"),
        ({}, [TRANSFORMER], "no module of the folder pools"),
        ({}, [POOLING], "the first module"),
        ({}, [TRANSFORMER, OLD + "Dense", POOLING], "Dense"),
        (
            {"d/config.json": {"module_output_name": "scores"}, "p/config.json": {}},
            [TRANSFORMER, (POOLING, "p"), (OLD + "Dense", "d")],
            "scores",
        ),
        (
            {BERT: {"transformer_task": "fill-mask"}},
            [TRANSFORMER, POOLING],
            "fill-mask",
        ),
        (
            {BERT: {"modality_config": {"message": {}}}},
            [TRANSFORMER, POOLING],
            "chat template",
        ),
        (
            {
                BERT: {
                    "modality_config": {"text": {"method_output_name": "pooler_output"}}
                }
            },
            [TRANSFORMER, POOLING],
            "pooler_output",
        ),
        (
            {BERT: {"processing_kwargs": {"text": {"add_special_tokens": False}}}},
            [TRANSFORMER, POOLING],
            "add_special_tokens",
        ),
        (
            {"m/config.json": {"keep_only_token_ids": [7]}} | LATE,
            [TRANSFORMER, (MASK, "m")],
            "images",
        ),
        (
            {"m/config.json": {"skiplist_words": ["."], "skiplist_tasks": ["query"]}}
            | LATE,
            [TRANSFORMER, (MASK, "m")],
            "documents only",
        ),
        (
            CROSS,
            [TRANSFORMER, "sentence_transformers.cross_encoder.LogitScore"],
            "LogitScore",
        ),
        (CROSS, [TRANSFORMER, OLD + "Dense"], "cross-encoder"),
    ],
)
def test_the_error_names_a_module_that_is_not_supported(
    write: Write, files: dict[str, Any], types: list[Any], name: str
) -> None:
    with pytest.raises(UnsupportedModel, match=name):
        read_sentence_folder(write(files, *types))


@pytest.mark.parametrize(
    "files, name",
    [
        ({"modules.json": "{"}, "modules.json is not JSON"),
        ({"modules.json": "[" * 100_000}, "modules.json is not JSON"),
        ({"modules.json": []}, "modules.json is not a list"),
        ({"modules.json": ["x"]}, "modules.json is not a JSON object"),
        ({"modules.json": [{"type": 3, "path": ""}]}, "modules.json .* 'type'"),
        ({"modules.json": [{"type": TRANSFORMER}]}, "'path'"),
        ({"p/config.json": "[]"}, "p/config.json is not a JSON object"),
        ({"p/config.json": {"pooling_mode": "median"}}, "p/config.json .*median"),
        ({"p/config.json": {"pooling_mode": []}}, "p/config.json"),
        ({"p/config.json": {"pooling_mode_cls_token": 1}}, "pooling_mode_cls_token"),
        ({"p/config.json": {"include_prompt": "no"}}, "include_prompt"),
        ({BERT: {"max_seq_length": "9"}}, "max_seq_length"),
        ({BERT: {"max_seq_length": 0}}, "max_seq_length"),
        (
            {CONFIG: {"prompts": {"a": 1}}},
            f"{CONFIG}: 'prompts' should have a text as 'a'",
        ),
        (
            {CONFIG: {"default_prompt_name": "a"}},
            "config_sentence_transformers.json has no prompt 'a'",
        ),
        ({CONFIG: {"truncate_dim": 1.5}}, "truncate_dim"),
        *(
            ({"modules.json": [{"type": TRANSFORMER, "path": path}]}, "outside the f")
            for path in ("../x", "/etc", "a/../../b", "C:\\x", "..\\x", "\0")
        ),
    ],
)
def test_a_broken_file_is_named(write: Write, files: dict[str, Any], name: str) -> None:
    whole = {"p/config.json": {}, **files}
    with pytest.raises(WeightsBroken, match=name):
        read_sentence_folder(write(whole, *POOLED))


@pytest.mark.parametrize(
    "expansion, reason",
    [
        ({"strategy": "fixed"}, "length"),
        ({"strategy": "all", "length": 3}, "strategy"),
        ({"strategy": "fixed", "length": 3, "attend": 1}, "attend"),
        ({"strategy": "fixed", "length": 33}, "query_length"),
    ],
)
def test_a_broken_query_expansion_is_refused(
    write: Write, expansion: Any, reason: str
) -> None:
    folder = write(
        {
            CONFIG: {"model_type": "MultiVectorEncoder"},
            BERT: {"query_length": 32, "query_expansion": expansion},
        },
        TRANSFORMER,
        (MASK, "1"),
    )
    with pytest.raises(WeightsBroken, match=reason):
        read_sentence_folder(folder)
