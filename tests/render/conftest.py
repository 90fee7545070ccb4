"""Renderers over all kinds of tokenizers, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from trioserve.config import RenderConfig
from trioserve.render import Renderer
from trioserve.testing.fake_device import make_info
from trioserve.testing.processors import ProcessorKind, save_tiny_processor
from trioserve.testing.renderers import load_renderer
from trioserve.testing.tokenizer import tiny_sentencepiece_tokenizer, tiny_tokenizer

MAX_MODEL_LEN = 256


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_sentencepiece_tokenizer(tmp_path_factory.mktemp("sentencepiece"))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A renderer, and another copy of its tokenizer as the oracle."""

    renderer: Renderer
    oracle: Tokenizer

    def encode(self, text: str) -> list[int]:
        return self.oracle.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return self.oracle.decode(ids, skip_special_tokens=skip_special_tokens)


def load_subject(folder: Path) -> Subject:
    return Subject(
        renderer=load_renderer(folder, RenderConfig(), info=make_info(MAX_MODEL_LEN)),
        oracle=Tokenizer.from_file(str(folder / "tokenizer.json")),
    )


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Subject:
    return load_subject(byte_level_folder)


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_folder: Path) -> Subject:
    return load_subject(sentencepiece_folder)


@pytest.fixture(scope="session", params=["byte_level", "sentencepiece"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each kind of renderer in turn."""
    found: Subject = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def load_template(byte_level_folder: Path) -> Callable[..., Renderer]:
    """Make a renderer with a chat template; options are RenderConfig's."""

    def load(template: str, **options: Any) -> Renderer:
        return load_renderer(
            byte_level_folder,
            RenderConfig(**options),
            info=make_info(4096),
            chat_template=template,
        )

    return load


@pytest.fixture(scope="session")
def processor_folders(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[ProcessorKind, Path]:
    """A model of each kind with an image processor."""
    kinds = get_args(ProcessorKind)
    return {
        kind: save_tiny_processor(kind, tmp_path_factory.mktemp(kind)) for kind in kinds
    }


_WORDS = (
    "The quick brown fox jumps over the lazy dog, and on and on. Paris is the capital",
    "of France! 你好世界。大家好 Zwölf größere Bücher für schöne Übungen 12 345 [x]",
    "embedding embedded embeddings token tokens tokenizer query: passage: search x_y",
)


def _train_wordpiece() -> Tokenizer:
    """Train a tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"],
        initial_alphabet=[chr(code) for code in range(33, 127)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_WORDS, trainer)
    # The last token is for late interaction: texts are not searched for it.
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = plain["added_tokens"][:-1]
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def _train_byte_level(post: str) -> Tokenizer:
    """Train a tokenizer like RoBERTa's or Qwen3-Embedding's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_WORDS, trainer)
    if post == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", 1), ("<s>", 0), add_prefix_space=False
        )
    else:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 1)]
        )
    return tokenizer


_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _train_unigram() -> Tokenizer:
    """Train a tokenizer like XLM-R's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(prepend_scheme="always"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=150,
        special_tokens=["<s>", "</s>", "<unk>", "<mask>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_WORDS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    return tokenizer


def _save(tokenizer: Tokenizer, folder: Path, **names: str) -> Path:
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def wordpiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(
        _train_wordpiece(),
        tmp_path_factory.mktemp("wordpiece"),
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


@pytest.fixture(scope="session")
def pooling_folders(
    wordpiece_folder: Path,
    byte_level_folder: Path,
    sentencepiece_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """One tokenizer of each kind that pooling models have."""
    make = tmp_path_factory.mktemp
    ends = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return {
        "wordpiece": wordpiece_folder,
        "roberta": _save(_train_byte_level("roberta"), make("roberta"), **ends),
        "qwen": _save(_train_byte_level("qwen"), make("qwen"), **ends),
        "unigram": _save(_train_unigram(), make("unigram"), **ends),
        # One without special tokens, and one that does not split texts into words.
        "byte_level": byte_level_folder,
        "sentencepiece": sentencepiece_folder,
    }
