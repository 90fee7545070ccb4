"""Settings of sentence-transformers have the same effect as in that library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
import string
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from trioserve.config import RenderConfig
from trioserve.errors import InvalidParameter, WeightsBroken
from trioserve.render import PoolingRenderer, TextOptions
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_pooling_renderer
from trioserve.types.pooling import PoolingInfo, PoolingInput
from trioserve.types.sentence import QueryExpansion, SentenceFolder

MAX_MODEL_LEN = 64
EMBED = PoolingInfo(task="embed", tasks=("embed",), num_outputs=8)
LATE = PoolingInfo(task="token_embed", tasks=("token_embed",), num_outputs=8)
PROMPTS = {"query": "search query: ", "document": "passage: ", "other": "x_y "}
TEXTS = ["", "the fox", "The quick, brown fox! embeds (tokens) - and x_y. " * 3]
EXPANSION = QueryExpansion(length=12)

Render = Callable[..., list[PoolingInput]]


@pytest.fixture(scope="module")
def folder(wordpiece_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for the oracle, which needs one even to tokenize."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=MAX_MODEL_LEN,
    )
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(wordpiece_folder).save_pretrained(folder)
    return folder


def load(
    folder: Path, sentence: SentenceFolder, pooling: PoolingInfo = EMBED
) -> PoolingRenderer:
    return load_pooling_renderer(
        folder,
        RenderConfig(),
        info=make_info(MAX_MODEL_LEN, vocab_size=200),
        pooling=pooling,
        sentence=sentence,
    )


@pytest.fixture
def render(folder: Path) -> Callable[..., Any]:
    async def render(
        sentence: SentenceFolder,
        texts: list[str],
        pooling: PoolingInfo = EMBED,
        **options: Any,
    ) -> list[PoolingInput]:
        renderer = load(folder, sentence, pooling)
        found = await renderer.render_texts(
            texts, TextOptions(**{"long_text": "truncate", **options}), str
        )
        return [only for (only,) in found]

    return render


def make_oracle(folder: Path, prompts: Mapping[str, str], **pooling: Any) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [Transformer(str(folder)), Pooling(8, **pooling)]
    return SentenceTransformer(
        modules=modules, prompts=dict(prompts), device="cpu", local_files_only=True
    )


def read_ids(features: Mapping[str, Any], row: int) -> list[int]:
    seen = features["attention_mask"][row].bool()
    ids: list[int] = features["input_ids"][row][seen].tolist()
    return ids


async def test_a_prompt_is_put_before_texts_and_left_out_of_the_pool(
    folder: Path, render: Callable[..., Any]
) -> None:
    sentence = SentenceFolder(
        modes=("mean",), prompts=PROMPTS, pools_prompts=False, default_prompt="other"
    )
    oracle = make_oracle(folder, PROMPTS, include_prompt=False)
    for name in (None, *PROMPTS):
        features = oracle.preprocess(TEXTS, prompt=PROMPTS[name or "other"])
        found = await render(sentence, TEXTS, prompt_name=name)
        for row, one in enumerate(found):
            assert one.token_ids.tolist() == read_ids(features, row)
            assert one.left_out == tuple(range(features["prompt_length"]))
        pooled = await render(
            replace(sentence, pools_prompts=True), TEXTS, prompt_name=name
        )
        assert [one.left_out for one in pooled] == [()] * len(TEXTS)
        assert [one.token_ids for one in pooled] == [one.token_ids for one in found]


@pytest.mark.parametrize("prompts", [PROMPTS, {}])
async def test_each_kind_has_the_prompt_of_encode_query_or_encode_document(
    folder: Path, render: Callable[..., Any], prompts: dict[str, str]
) -> None:
    oracle = make_oracle(folder, {**prompts, "other": "x_y "})
    oracle.default_prompt_name = "other"
    sentence = SentenceFolder(
        modes=("mean",), prompts={**prompts, "other": "x_y "}, default_prompt="other"
    )
    for kind in ("query", "document"):
        expected = getattr(oracle, f"encode_{kind}")("the fox", output_value=None)
        (found,) = await render(sentence, ["the fox"], kind=kind)
        assert found.token_ids.tolist() == expected["input_ids"].tolist(), kind


@pytest.mark.parametrize("name", ["passage", "corpus"])
async def test_documents_take_prompts_of_older_names(
    render: Callable[..., Any], name: str
) -> None:
    sentence = SentenceFolder(modes=("mean",), prompts={name: "passage: "})
    texts = ["the fox"]
    by_kind = await render(sentence, texts, kind="document")
    assert by_kind == await render(sentence, texts, prompt_name=name)
    assert by_kind != await render(sentence, texts)


async def test_the_error_for_an_unknown_prompt_lists_the_known_ones(
    render: Callable[..., Any],
) -> None:
    sentence = SentenceFolder(modes=("mean",), prompts=PROMPTS)
    with pytest.raises(InvalidParameter, match="query, document, other") as caught:
        await render(sentence, ["x"], prompt_name="no")
    assert caught.value.param == "prompt_name"


async def test_a_prompt_cut_on_the_left_leaves_fewer_tokens_out(
    render: Callable[..., Any],
) -> None:
    sentence = SentenceFolder(
        modes=("mean",), prompts={"p": "x x x "}, pools_prompts=False
    )
    for limit, left_out in ((8, 4), (7, 3), (5, 1), (4, 1)):
        (one,) = await render(
            sentence,
            ["the the the"],
            prompt_name="p",
            truncate_to=limit,
            truncation_side="left",
        )
        assert one.left_out == tuple(range(left_out))


@pytest.mark.parametrize("pools_prompts", [True, False])
async def test_prompts_stand_before_every_chunk(
    folder: Path, pools_prompts: bool
) -> None:
    sentence = SentenceFolder(
        modes=("mean",), prompts=PROMPTS, pools_prompts=pools_prompts
    )
    renderer = load(folder, sentence)
    text = "the fox jumps over tokens " * 20
    options = TextOptions(long_text="chunk", prompt_name="query")
    (chunks,) = await renderer.render_texts([text], options, str)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(PROMPTS["query"], add_special_tokens=False)["input_ids"]
    inner: list[int] = []
    for chunk in chunks:
        ids = chunk.token_ids.tolist()
        assert ids[: 1 + len(prompt)] == [tokenizer.cls_token_id, *prompt]
        assert ids[-1] == tokenizer.sep_token_id
        inner += ids[1 + len(prompt) : -1]
        left_out = 0 if pools_prompts else 1 + len(prompt)
        assert chunk.left_out == tuple(range(left_out))
    assert inner == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert {chunk.num_tokens for chunk in chunks[:-1]} == {MAX_MODEL_LEN}


async def test_texts_are_brought_to_lower_case(
    pooling_folders: dict[str, Path],
) -> None:
    renderer = load(
        pooling_folders["roberta"], SentenceFolder(modes=("mean",), lowercases=True)
    )
    upper, lower = await renderer.render_texts(
        ["The FOX", "the fox"], TextOptions(), str
    )
    assert upper == lower


async def test_the_tokenizer_is_read_from_the_transformers_folder(
    folder: Path, render: Callable[..., Any]
) -> None:
    sentence = SentenceFolder(transformer_path=folder.name, modes=("mean",))
    renderer = load(folder.parent, sentence)
    options = TextOptions(long_text="truncate")
    found = await renderer.render_texts(TEXTS, options, str)
    expected = await render(SentenceFolder(modes=("mean",)), TEXTS)
    assert [one for (one,) in found] == expected


def make_late_oracle(folder: Path, sentence: SentenceFolder) -> Any:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    expansion = sentence.query_expansion
    transformer = Transformer(
        str(folder),
        query_length=sentence.query_length,
        document_length=sentence.document_length,
        query_expansion=(
            None
            if expansion is None
            else {
                "strategy": "fixed" if expansion.is_limit else "min",
                "attend": expansion.is_seen,
                "token": expansion.token,
                "length": expansion.length,
            }
        ),
    )
    mask = MultiVectorMask(skiplist_words=list(sentence.skipped_words))
    model = MultiVectorEncoder(modules=[transformer, mask], device="cpu")
    if sentence.special_words:
        model._register_prefix_tokens(dict(sentence.prompts))
    return model


def check_late(
    features: Mapping[str, Any], scored: Any, row: int, one: PoolingInput
) -> None:
    """Compare ids, the attention mask, and the positions with a vector."""
    num_tokens = one.num_tokens
    seen = features["attention_mask"][row].tolist()
    # The oracle pads to the longest text of its batch.
    assert not any(seen[num_tokens:])
    assert one.token_ids.tolist() == features["input_ids"][row].tolist()[:num_tokens]
    num_seen = num_tokens - one.num_unseen
    assert seen[:num_tokens] == [1] * num_seen + [0] * one.num_unseen
    kept = [i for i in range(num_tokens) if i not in one.left_out]
    assert kept == scored[row].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    "sentence",
    [
        SentenceFolder(),
        SentenceFolder(query_length=9, document_length=20),
        SentenceFolder(query_expansion=EXPANSION, document_length=20),
        SentenceFolder(query_expansion=replace(EXPANSION, is_seen=True)),
        SentenceFolder(query_expansion=replace(EXPANSION, is_limit=False)),
        SentenceFolder(
            query_expansion=replace(EXPANSION, is_limit=False), query_length=20
        ),
        SentenceFolder(query_expansion=replace(EXPANSION, token="[PAD]")),
        SentenceFolder(skipped_words=(*string.punctuation, "embedding")),
        SentenceFolder(
            query_expansion=EXPANSION,
            document_length=30,
            skipped_words=tuple(string.punctuation),
            prompts={"query": "[unused0] ", "document": "[unused0] "},
            special_words=("[unused0] ", "[unused0]"),
        ),
    ],
)
async def test_late_interaction_is_that_of_multi_vector_encoder(
    folder: Path, render: Callable[..., Any], sentence: SentenceFolder
) -> None:
    oracle = make_late_oracle(folder, sentence)
    for kind in ("query", "document"):
        prompt = sentence.prompts.get(kind)
        features = oracle.preprocess(TEXTS, prompt=prompt, task=kind)
        masked = oracle[1](dict(features), task=kind)
        found = await render(sentence, TEXTS, LATE, kind=kind)
        for row, one in enumerate(found):
            check_late(features, masked["attention_mask"], row, one)


async def test_a_text_of_no_kind_is_a_document(render: Callable[..., Any]) -> None:
    sentence = SentenceFolder(
        document_length=9, query_expansion=EXPANSION, skipped_words=(",",)
    )
    documents = await render(sentence, TEXTS, LATE, kind="document")
    assert documents == await render(sentence, TEXTS, LATE)
    assert documents != await render(sentence, TEXTS, LATE, kind="query")


async def test_ids_are_not_filled_up(folder: Path, render: Callable[..., Any]) -> None:
    sentence = SentenceFolder(query_expansion=EXPANSION)
    (one,) = await render(sentence, [(5, 6)], LATE, kind="query")
    assert (one.token_ids.tolist(), one.num_unseen) == ([5, 6], 0)


def test_a_filler_that_is_no_token_is_refused_at_start(folder: Path) -> None:
    expansion = replace(EXPANSION, token="[NONE]")
    with pytest.raises(WeightsBroken, match="NONE"):
        load(folder, SentenceFolder(query_expansion=expansion), LATE)
