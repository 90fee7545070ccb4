"""Reasoning is separated in the same way for any division of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, strategies as st
import pytest
from tokenizers import Tokenizer

from trioserve.config import RenderConfig
from trioserve.errors import InvalidConfig
from trioserve.render import Renderer
from trioserve.render.text.reasoning import (
    REASONING_STYLES,
    Place,
    ReasoningSplitter,
    ReasoningStyle,
    ReasoningTags,
    load_reasoning_tags,
)
from trioserve.render.text.tokenizer import TextTokenizer
from trioserve.render.text.vocabulary import Vocabulary
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_renderer
from trioserve.types.output import TextDelta
from trioserve.types.prompt import Prompt

if TYPE_CHECKING:
    from conftest import Subject

PLACES: tuple[Place, ...] = ("before", "opened", "after")

# The tags overlap with each other and with themselves.
TIGHT = ReasoningStyle(start="aab", end="aac")

words = st.sampled_from(["a", "aa", "b", "c", "aab", "aac", " ", "\n\n", "\u2003", "x"])
texts = st.lists(words, max_size=16).map("".join)
styles = st.sampled_from([TIGHT, *set(REASONING_STYLES.values())])


@st.composite
def tagged_texts(draw: st.DrawFn) -> tuple[ReasoningStyle, str]:
    """Draw a style, and a text with whole tags, broken tags and space."""
    style = draw(styles)
    tags = (style.start, style.end, style.start[:-1], style.end[1:], style.end[:2])
    pieces = st.sampled_from([*tags, " ", "\n", "\t\n ", "word", "<", "你"])
    return style, "".join(draw(st.lists(pieces, max_size=12)))


def split_whole(style: ReasoningStyle, place: Place, text: str) -> tuple[str, str]:
    """Return (reasoning, content) of a complete text, in a simple way."""
    before, rest = "", text
    if place == "after":
        return "", text.lstrip()
    if place == "opened":
        rest = text.lstrip().removeprefix(style.start)
    else:
        before, tag, rest = text.partition(style.start)
        if not tag:
            return "", text
    reasoning, tag, answer = rest.partition(style.end)
    if tag:
        reasoning = reasoning.rstrip()
    return reasoning.lstrip(), (before if before.strip() else "") + answer.lstrip()


def split_cut(
    style: ReasoningStyle, place: Place, pieces: Sequence[str]
) -> tuple[str, str]:
    splitter = ReasoningSplitter(style, place)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)])]


@given(
    tagged=tagged_texts() | texts.map(lambda text: (TIGHT, text)),
    place=st.sampled_from(PLACES),
    cuts=st.lists(st.integers(0, 60), max_size=6).map(sorted),
)
def test_how_a_text_is_cut_changes_nothing(
    tagged: tuple[ReasoningStyle, str], place: Place, cuts: list[int]
) -> None:
    style, text = tagged
    expected = split_whole(style, place, text)
    assert split_cut(style, place, [text]) == expected
    assert split_cut(style, place, list(text)) == expected
    assert split_cut(style, place, cut(text, cuts)) == expected
    splitter = ReasoningSplitter(style, place)
    for piece in cut(text, cuts):
        splitter.push(piece)
    check_section(splitter, style, place, text)


@given(tagged=tagged_texts(), place=st.sampled_from(PLACES))
def test_at_most_a_tag_and_whitespace_is_held_back(
    tagged: tuple[ReasoningStyle, str], place: Place
) -> None:
    style, text = tagged
    splitter = ReasoningSplitter(style, place)
    shown = ["", ""]
    for end, character in enumerate(text, 1):
        for i, part in enumerate(splitter.push(character)):
            shown[i] += part
        whole = split_whole(style, place, text[:end])
        if all(part == seen for part, seen in zip(whole, shown)):
            continue
        # The parts that are not shown yet are the end of the text so far.
        rest = "".join(part[len(seen) :] for part, seen in zip(whole, shown))
        longest = max(len(style.start), len(style.end))
        assert len(rest.lstrip()) < longest
        assert text[:end].endswith(rest.lstrip())


def check_section(
    splitter: ReasoningSplitter, style: ReasoningStyle, place: Place, text: str
) -> None:
    if place == "after":
        assert (splitter.begin, splitter.end) == (0, 0)
        return
    begin = text.find(style.start) if place == "before" else 0
    assert splitter.begin == (None if begin < 0 else begin)
    if begin < 0:
        return
    skipped = text[begin:]
    if place == "opened":
        skipped = text.lstrip()
    start = len(text) - len(skipped)
    if skipped.startswith(style.start):
        start += len(style.start)
    end = text.find(style.end, start)
    assert splitter.end == (None if end < 0 else end + len(style.end))


def test_examples_of_qwen3() -> None:
    for place, text, reasoning, content in (
        ("before", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (
            *("before", "\n<think>Hm.</think>Yes. <think>No.</think>", "Hm."),
            "Yes. <think>No.</think>",
        ),
        ("before", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("before", "<think>Hm. <thi", "Hm. <thi", ""),
        ("before", "<think>Hm.\n", "Hm.\n", ""),
        ("before", "Yes.", "", "Yes."),
        ("before", " \n", "", " \n"),
        ("before", "Yes. <thin", "", "Yes. <thin"),
        ("before", "Yes. <think>Hm.</think> No.", "Hm.", "Yes. No."),
        ("before", "Yes.</think>No.", "", "Yes.</think>No."),
        ("opened", "Hm.</think>Yes.", "Hm.", "Yes."),
        # Some models repeat the start tag of the template.
        ("opened", "\n<think>\nHm.</think>Yes.", "Hm.", "Yes."),
        ("opened", "</think>\nYes.", "", "Yes."),
        ("opened", "Hm. <think> Hm.", "Hm. <think> Hm.", ""),
    ):
        style = REASONING_STYLES["qwen3"]
        assert split_cut(style, place, list(text)) == (reasoning, content)


def test_examples_of_gemma4() -> None:
    for text, reasoning, content in (
        ("<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
        ("<|channel>thought\n<channel|>Yes.", "", "Yes."),
        ("<|channel>thought\nHm.", "Hm.", ""),
        ("<|channel>thou", "", "<|channel>thou"),
        ("Yes.", "", "Yes."),
    ):
        style = REASONING_STYLES["gemma4"]
        assert split_cut(style, "before", list(text)) == (reasoning, content)


def make_tags(name: str) -> ReasoningTags:
    return ReasoningTags(
        style=REASONING_STYLES[name],
        start_token_ids=(1,),
        end_token_ids=(2,),
        kept_token_ids=frozenset(),
    )


def test_the_end_of_the_prompt_decides_where_the_answer_begins() -> None:
    for prompt, qwen3, deepseek_r1 in (
        ("user: hi\nassistant:", "before", "opened"),
        ("user: hi\nassistant: <think>\n", "opened", "opened"),
        ("user: hi\nassistant: <think>\n\n</think>\n\n", "after", "after"),
        ("user: </think>\nassistant:", "before", "opened"),
        ("user: <think>\nassistant:", "before", "opened"),
        ("", "before", "opened"),
        (None, "before", "opened"),
        ("<think>" + " " * 10_000, "before", "opened"),
    ):
        assert make_tags("qwen3").find_place(prompt) == qwen3
        assert make_tags("deepseek_r1").find_place(prompt) == deepseek_r1


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ("<|turn>model\n", "before"),
        # A template without thinking, and one that begins the thought itself.
        ("<|turn>model\n<|channel>thought\n<channel|>", "after"),
        ("<|turn>model\n<|channel>thought\n", "opened"),
    ],
)
def test_the_end_of_gemma4s_prompt_decides_too(prompt: str, place: Place) -> None:
    assert make_tags("gemma4").find_place(prompt) == place


def load(folder: Path, name: str) -> Renderer:
    config = RenderConfig(reasoning_parser=name)  # type: ignore[arg-type]
    return load_renderer(folder, config, info=make_info(256))


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A renderer that splits off reasoning, and another copy of its tokenizer."""

    renderer: Renderer
    oracle: Tokenizer

    @property
    def is_special(self) -> bool:
        """True if each tag is a special token with one id."""
        return self.oracle.token_to_id("[THINK]") is not None

    def read(
        self, text: str, cuts: Sequence[int] = (), **options: object
    ) -> tuple[TextDelta, int]:
        """Return a complete answer, and the number of its tokens."""
        prompt = Prompt(token_ids=(300,), text=None)
        reader = self.renderer.open_detokenizer(
            prompt, splits_reasoning=True, **options  # type: ignore[arg-type]
        )
        ids = self.encode(text)
        deltas = [
            reader.push(ids[begin:end])
            for begin, end in zip([0, *cuts], [*cuts, len(ids)])
        ]
        return TextDelta.join([*deltas, reader.finish()]), len(ids)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.oracle.encode(text, add_special_tokens=False).ids)


def make_reader(folder: Path, name: str) -> Reader:
    return Reader(
        renderer=load(folder, name),
        oracle=Tokenizer.from_file(str(folder / "tokenizer.json")),
    )


@pytest.fixture(scope="session")
def special_folder(
    byte_level_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A tokenizer with Mistral's tags, which are special tokens of one id each."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(byte_level_folder)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["[THINK]", "[/THINK]", "[OTHER]"]}
    )
    folder = tmp_path_factory.mktemp("special")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def special_reader(special_folder: Path) -> Reader:
    return make_reader(special_folder, "mistral")


@pytest.fixture(scope="session", params=["special", "plain"])
def reader(
    request: pytest.FixtureRequest, special_reader: Reader, byte_level_folder: Path
) -> Reader:
    if request.param == "special":
        return special_reader
    return make_reader(byte_level_folder, "mistral")


def test_tags_that_are_special_tokens_are_seen_although_those_are_skipped(
    reader: Reader,
) -> None:
    whole, _ = reader.read("[THINK]Hm.[/THINK]Yes.<|im_end|>")
    assert (whole.reasoning, whole.text) == ("Hm.", "Yes.")
    tags = reader.renderer.reasoning
    assert tags is not None
    assert (len(tags.kept_token_ids) == 2) == reader.is_special
    assert (len(tags.end_token_ids) == 1) == reader.is_special


def test_other_texts_leave_the_tags_out(reader: Reader) -> None:
    plain = reader.renderer.open_detokenizer(Prompt(token_ids=(300,)))
    text = plain.push(reader.encode("[THINK]Hm.")).text
    assert text == ("Hm." if reader.is_special else "[THINK]Hm.")


def test_other_special_tokens_are_still_left_out(special_reader: Reader) -> None:
    whole, _ = special_reader.read("[THINK]H[OTHER]m.[/THINK]Y[OTHER]es.")
    assert (whole.reasoning, whole.text) == ("Hm.", "Yes.")


def test_tokens_of_reasoning_are_counted_in_groups_of_any_size(reader: Reader) -> None:
    texts = (
        ("", "[THINK]Hm, hm.[/THINK]", "Yes."),
        ("Well, ", "[THINK] 你好🙂[/THINK]", " Yes. [THINK]No."),
        ("", "[THINK]Hm, hm.", ""),
        ("Yes. [THI", "", ""),
        ("Yes.", "", ""),
    )
    cuts = ((), (3,), (1, 2, 9), tuple(range(1, 15)))
    stops = ((), ("zzz",), ("K]H", "]Yes, no"), ("[/THINK]Nooo",))
    for text, cut, stop in product(texts, cuts, stops):
        before, section, _ = text
        whole, num_tokens = reader.read("".join(text), cut, stop=stop)
        if whole.stop_reason:
            continue
        assert len(whole.token_ids) == num_tokens, (text, cut, stop)
        # A token counts if one of its characters does; here its bytes decide that.
        begin, end = len(before.encode()), len((before + section).encode())
        expected, offset = 0, 0
        for token_id in reader.encode("".join(text)):
            length = len(reader.renderer.token_bytes(token_id))
            expected += bool(section) and offset < end and offset + length > begin
            offset += length
        assert whole.num_reasoning_tokens == expected, (text, cut, stop)


@pytest.mark.parametrize("stop", [(), ("!",)])
def test_after_its_end_an_answer_takes_no_more(
    reader: Reader, stop: tuple[str, ...]
) -> None:
    prompt = Prompt(token_ids=(300,))
    text = reader.renderer.open_detokenizer(prompt, splits_reasoning=True, stop=stop)
    text.push(reader.encode("[THINK]Hm.[/THINK]Yes!"))
    text.finish()
    late = text.push(reader.encode("More."))
    assert (late.text, late.reasoning, late.num_reasoning_tokens) == ("", "", 0)


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 30)).map(sorted))
def test_an_answer_without_reasoning_is_the_same_without_a_parser(
    byte_level: Subject, splitting: Renderer, text: str, cuts: list[int]
) -> None:
    prompt = Prompt(token_ids=(300,))
    ids = byte_level.encode(text)
    plain = byte_level.renderer.open_detokenizer(prompt)
    expected = plain.push(ids).text + plain.finish().text
    reader = splitting.open_detokenizer(prompt, splits_reasoning=True)
    deltas = [
        reader.push(ids[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(ids)])
    ]
    whole = TextDelta.join([*deltas, reader.finish()])
    assert (whole.text, whole.reasoning) == (expected, "")
    assert (len(whole.token_ids), whole.num_reasoning_tokens) == (len(ids), 0)


@pytest.fixture(scope="session")
def splitting(byte_level_folder: Path) -> Renderer:
    return load(byte_level_folder, "mistral")


def test_sentencepieces_space_before_a_tag_is_no_hindrance(
    sentencepiece_folder: Path,
) -> None:
    reader = make_reader(sentencepiece_folder, "qwen3")
    whole, _ = reader.read("<think>Hm.</think> Yes.")
    assert (whole.reasoning, whole.text) == ("Hm.", "Yes.")


def test_a_tokenizer_that_cannot_write_the_tags_is_refused(
    wordpiece_folder: Path,
) -> None:
    """Its letters are ASCII, so it reads the tag as unknown tokens."""
    backend = Tokenizer.from_file(str(wordpiece_folder / "tokenizer.json"))
    vocabulary = Vocabulary(backend)
    tokenizer = TextTokenizer(backend, vocabulary, max_model_len=256)
    with pytest.raises(InvalidConfig, match="--reasoning-parser: .* cannot write"):
        load_reasoning_tags("kimi", tokenizer, vocabulary)


def test_stop_strings_beside_reasoning(reader: Reader) -> None:
    for text, options, reasoning, answer in (
        # A stop string is found before the text is split, and may be a tag.
        ("[THINK]Hm. STOP Hm.[/THINK]Yes.", {}, "Hm. ", ""),
        ("[THINK]Hm.[/THINK]Yes. STOP No.", {}, "Hm.", "Yes. "),
        ("[THINK]Hm.[/THINK]Yes.", {"stop": ("[/THINK]",)}, "Hm.", ""),
        # Text that was held back comes with the end.
        ("[THINK]Hm. S", {}, "Hm. S", ""),
        ("[THINK]Hm.[/THINK]Yes. S", {}, "Hm.", "Yes. S"),
        (
            "[THINK]Hm.[/THINK]Yes. STOP No.",
            {"include_stop_str_in_output": True},
            *("Hm.", "Yes. STOP"),
        ),
    ):
        whole, num_tokens = reader.read(text, **{"stop": ("STOP",), **options})
        assert (whole.reasoning, whole.text) == (reasoning, answer), (text, options)
        is_stopped = len(whole.token_ids) < num_tokens
        assert (whole.stop_reason is not None) == is_stopped, (text, options)
        if whole.stop_reason and not answer:
            assert whole.num_reasoning_tokens == len(whole.token_ids), (text, options)


def test_an_answer_with_reasoning_is_not_stopped_before_its_min_tokens(
    reader: Reader,
) -> None:
    text, stop = "[THINK]Hm.[/THINK]Yes! Yes!", ("!",)
    num_tokens = len(reader.encode("[THINK]Hm.[/THINK]Yes!"))
    stopped, _ = reader.read(text, stop=stop, min_tokens=num_tokens - 1)
    longer, _ = reader.read(text, stop=stop, min_tokens=num_tokens)
    assert (stopped.text, longer.text) == ("Yes", "Yes! Yes")


def test_an_answer_with_reasoning_shows_special_tokens_on_request(
    special_reader: Reader,
) -> None:
    whole, _ = special_reader.read(
        "[THINK]Hm.[/THINK]Y[OTHER]es.", skip_special_tokens=False
    )
    assert (whole.reasoning, whole.text) == ("Hm.", "Y[OTHER]es.")


def test_sentencepieces_first_space_is_dropped_with_reasoning_too(
    sentencepiece_folder: Path,
) -> None:
    reader = make_reader(sentencepiece_folder, "qwen3")
    special = next(iter(reader.renderer.vocabulary.special_token_ids))
    ids = reader.encode("Yes.")
    for prompt, text in ((special, "Yes."), (300, " Yes.")):
        answer = reader.renderer.open_detokenizer(
            Prompt(token_ids=(prompt,)), splits_reasoning=True
        )
        assert answer.push(ids).text + answer.finish().text == text


def test_tokens_of_reasoning_are_counted_as_they_come(special_reader: Reader) -> None:
    prompt = Prompt(token_ids=(300,))
    answer = special_reader.renderer.open_detokenizer(prompt, splits_reasoning=True)
    ids = special_reader.encode("[THINK]Hm.")
    assert [answer.push((i,)).num_reasoning_tokens for i in ids] == [1] * len(ids)


def test_space_before_the_tag_is_no_reasoning(special_reader: Reader) -> None:
    whole, num_tokens = special_reader.read("\n[THINK]Hm.[/THINK]Yes.")
    num_reasoning = len(special_reader.encode("[THINK]Hm.[/THINK]"))
    assert whole.num_reasoning_tokens == num_reasoning < num_tokens
    assert special_reader.encode("\n[THINK]")[1:] == special_reader.encode("[THINK]")


def test_after_a_stop_string_in_the_reasoning_no_token_counts(reader: Reader) -> None:
    answer = reader.renderer.open_detokenizer(
        Prompt(token_ids=(300,)), splits_reasoning=True, stop=("!",)
    )
    ended = answer.push(reader.encode("[THINK]Hm!"))
    assert (ended.reasoning, ended.stop_reason) == ("Hm", "!")
    assert answer.push(reader.encode("x")).num_reasoning_tokens == 0


def test_a_held_token_before_the_tag_is_no_reasoning(special_reader: Reader) -> None:
    """The first "[" may begin the tag, so it is held back until the tag is found."""
    whole, num_tokens = special_reader.read("[[THINK]Hm.[/THINK]Yes.", range(1, 20))
    num_reasoning = len(special_reader.encode("[THINK]Hm.[/THINK]"))
    assert (whole.reasoning, whole.text) == ("Hm.", "[Yes.")
    assert whole.num_reasoning_tokens == num_reasoning < num_tokens


@pytest.mark.parametrize("prompt, num_reasoning", [("<think>\n", 1), ("Hi.", 0)])
def test_half_a_character_alone_belongs_to_the_section_that_is_open(
    byte_level_folder: Path, prompt: str, num_reasoning: int
) -> None:
    reader = make_reader(byte_level_folder, "qwen3")
    answer = reader.renderer.open_detokenizer(
        Prompt(token_ids=(300,), text=prompt), splits_reasoning=True
    )
    deltas = [answer.push(reader.encode("🙂")[:1]), answer.finish()]
    whole = TextDelta.join(deltas)
    assert whole.num_reasoning_tokens == num_reasoning
    assert whole.reasoning == num_reasoning * "\N{REPLACEMENT CHARACTER}"
