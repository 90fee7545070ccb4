"""Tool calls are split off the text, in the same way for any division of the text."""

from __future__ import annotations

from dataclasses import dataclass
import json
import sys
from types import FrameType

from hypothesis import given, strategies as st
import pytest

from trioserve.render.tools.families import find_scanner, recognise_family
from trioserve.render.tools.gpt_oss import GptOssScanner
from trioserve.render.tools.tool_table import ToolTable
from trioserve.types.families import TOOL_FAMILIES
from trioserve.types.output import TextDelta, ToolCallDelta

SCANNERS = {name: find_scanner(name) for name in TOOL_FAMILIES}


def make_tool(name: str, **parameters: object) -> dict[str, object]:
    schema = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TABLE = ToolTable(
    [
        make_tool(
            "weather",
            city={"type": "string"},
            days={"type": "integer"},
            metric={"type": "boolean"},
            tags={"type": "array", "items": {"type": "string"}},
            place={"type": "object"},
            code={"anyOf": [{"type": "string"}, {"type": "null"}]},
            either={"type": ["integer", "null"]},
            anything={},
        ),
        make_tool("stop"),
    ]
)

Calls = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The parts of a text by a scanner; calls are (name, arguments) each."""

    text: str
    calls: Calls
    ids: list[str]
    reasoning: str = ""


def split(
    family: str,
    pieces: list[str],
    *,
    takes_one: bool = False,
    is_cut: bool = False,
    calls_only: bool = False,
) -> Split:
    scanner = SCANNERS[family](TABLE, takes_one=takes_one, calls_only=calls_only)
    deltas = []
    for number, piece in enumerate(pieces, 1):
        is_last = number == len(pieces)
        text, calls = scanner.push(piece, is_last=is_last, is_cut=is_last and is_cut)
        assert len({call.index for call in calls}) == len(calls)
        reasoning = scanner.take_reasoning()
        deltas.append(TextDelta(text=text, tool_calls=calls, reasoning=reasoning))
    joined = TextDelta.join(deltas)
    calls = joined.tool_calls
    assert [call.index for call in calls] == list(range(len(calls)))
    return Split(
        text=joined.text,
        calls=[(call.name, call.arguments) for call in calls],
        ids=[call.id for call in calls],
        reasoning=joined.reasoning,
    )


@dataclass(frozen=True)
class Case:
    """A text of a family's model, with the expected parts."""

    family: str
    written: str
    calls: Calls
    text: str = ""


CITY = '{"city": "Wien", "days": 3}'
CALL = f'{{"name": "weather", "arguments": {CITY}}}'
STOP = '{"name": "stop", "arguments": {}}'
BOTH: Calls = [("weather", CITY), ("stop", "{}")]
XML_CALL = (
    "<function=weather>\n<parameter=city>\nWien\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>"
)
GLM_PAIRS = (
    "<arg_key>city</arg_key>\n<arg_value>Wien</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
)

CASES = [
    # hermes
    Case("hermes", f"<tool_call>\n{CALL}\n</tool_call>", BOTH[:1]),
    Case(
        "hermes",
        f"I look.\n<tool_call>\n{CALL}\n</tool_call>\n"
        f"<tool_call>\n{STOP}\n</tool_call>\nDone.\n",
        BOTH,
        "I look.Done.\n",
    ),
    Case(
        "hermes",
        f'<tool_call>{{"arguments": {CITY}, "name": "weather"}}</tool_call>',
        BOTH[:1],
    ),
    Case(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": '
        f"{json.dumps(CITY)}}}</tool_call>",
        BOTH[:1],
    ),
    Case(
        "hermes",
        '<tool_call>\n{"id": "c1", "type": "function", "name": "stop"}'
        '</tool_call><tool_call>{"name": "stop", "arguments": null}</tool_call>',
        [("stop", "{}"), ("stop", "{}")],
    ),
    # No end tag: another call, or nothing, follows.
    Case("hermes", f"<tool_call>\n{CALL}\n<tool_call>\n{STOP}", BOTH),
    # The tool is unknown, but the tag says that it is a call.
    Case(
        "hermes",
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        [("fly", "{}")],
    ),
    # A line end in a string is not JSON, but models write it.
    Case(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "a\nb"}}' "</tool_call>",
        [("weather", '{"city": "a\\u000ab"}')],
    ),
    # The tags may stand in a string.
    Case(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": '
        '{"city": "</tool_call> }{ \\" <tool_call>"}}</tool_call>',
        [("weather", '{"city": "</tool_call> }{ \\" <tool_call>"}')],
    ),
    # The first tag begins nothing; the second one does.
    Case(
        "hermes",
        f"Write <tool_call> <tool_call>{CALL}</tool_call>",
        BOTH[:1],
        "Write <tool_call>",
    ),
    # A call that breaks ends there, and the rest is text.
    Case(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": Wien}}' "</tool_call>",
        [("weather", '{"city": ')],
        "Wien}}</tool_call>",
    ),
    Case(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "Wi',
        [("weather", '{"city": "Wi')],
    ),
    # llama3_json
    Case("llama3_json", f'{{"name": "weather", "parameters": {CITY}}}', BOTH[:1]),
    Case("llama3_json", f"<|python_tag|>{CALL}; {STOP}", BOTH),
    Case("llama3_json", f"\n\n{CALL}\n{STOP}\nThat is it.", BOTH, "That is it."),
    Case("llama3_json", f"<|python_start|>{CALL}<|python_end|>", BOTH[:1]),
    # mistral
    Case("mistral", f"[TOOL_CALLS] [{CALL}, {STOP}]", BOTH),
    Case(
        "mistral",
        f"Yes.[TOOL_CALLS]weather[ARGS]{CITY}[TOOL_CALLS]stop[ARGS]{{}}",
        BOTH,
        "Yes.",
    ),
    Case("mistral", f"[TOOL_CALLS]weather[CALL_ID]aB3dE6gH9[ARGS]{CITY}", BOTH[:1]),
    Case("mistral", f"[TOOL_CALLS]weather{CITY}", BOTH[:1]),
    # granite, phi4_mini
    Case("granite", f"<|tool_call|>[{CALL}, {STOP}]", BOTH),
    Case("granite", f"<tool_call> [{CALL}]\n", BOTH[:1]),
    Case("phi4_mini", f"functools[{CALL}, {STOP}]", BOTH),
    Case("phi4_mini", f"<|tool_call|>[{CALL}]<|/tool_call|>", BOTH[:1]),
    # gpt_oss
    Case(
        "gpt_oss",
        "<|channel|>commentary to=functions.weather <|constrain|>json"
        f"<|message|>{CITY}<|end|><|start|>assistant<|channel|>commentary"
        " to=functions.stop<|message|>{}<|call|>",
        BOTH,
    ),
    # kimi_k2
    Case(
        "kimi_k2",
        "I look.<|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{CITY}<|tool_call_end|>\n"
        "<|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>"
        "{}<|tool_call_end|><|tool_calls_section_end|>",
        BOTH,
        "I look.",
    ),
    # deepseek_v3
    Case(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜>"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{CITY}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n"
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
    ),
    Case(
        "deepseek_v3",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{CITY}"
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
    ),
    # qwen3_coder
    Case(
        "qwen3_coder",
        f"Well.\n<tool_call>\n{XML_CALL}\n</tool_call>\n"
        "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
        BOTH,
        "Well.",
    ),
    # The outer tag, or the inner end tag, is missing.
    Case("qwen3_coder", XML_CALL, BOTH[:1]),
    Case("qwen3_coder", "<tool_call><function=stop></tool_call>", [("stop", "{}")]),
    Case(
        "qwen3_coder",
        '<tool_call><function=weather><parameter=city>\n\n a\n<b> "c"\\\n\n'
        "</parameter></function></tool_call>",
        [("weather", '{"city": "\\n a\\n<b> \\"c\\"\\\\\\n"}')],
    ),
    Case(
        "qwen3_coder",
        "<tool_call><function=weather><parameter=city>Wi",
        [("weather", '{"city": "Wi')],
    ),
    # llama4_pythonic
    Case("llama4_pythonic", "[weather(city='Wien', days=3), stop()]", BOTH),
    Case(
        "llama4_pythonic",
        '<|python_start|>[ weather( city = "Wien" , days = 3 ) ]<|python_end|>',
        BOTH[:1],
    ),
    Case(
        "llama4_pythonic",
        "[weather(city='it\\'s \"so\"\\n\\u00e9\\d', tags=[1, 'a', []], "
        "place={'a': {'b': None}}, metric=True)] Yes.",
        [
            (
                "weather",
                '{"city": "it\'s \\"so\\"\\n\\u00e9\\\\d", "tags": [1, "a", []], '
                '"place": {"a": {"b": null}}, "metric": true}',
            )
        ],
        "Yes.",
    ),
    # gemma
    Case(
        "functiongemma",
        "So.<start_function_call>call:weather{city:<escape>Wien<escape>,days:3}"
        "<end_function_call><start_function_call>call:stop{}<end_function_call>",
        BOTH,
        "So.",
    ),
    Case(
        "gemma4",
        '<|tool_call>call:weather{city:<|"|>Wien<|"|>, days: 3 }<tool_call|>\n'
        "<|tool_call>call:stop{ }<tool_call|>",
        BOTH,
    ),
    Case(
        "gemma4",
        '<|tool_call>call:weather{place:{a:[1,-2.5,{b:<|"|>"{,<|"|>},[]],'
        '<|"|>c<|"|>:True},metric:none,x:word}<tool_call|>',
        [
            (
                "weather",
                '{"place": {"a": [1, -2.5, {"b": "\\"{,"}, []], "c": true}, '
                '"metric": null, "x": "word"}',
            )
        ],
    ),
    Case(
        "gemma4",
        "<|tool_call>call:f{a:1e+5,b:1.5E+10}",
        [("f", '{"a": 1e+5, "b": 1.5E+10}')],
    ),
    # glm4
    Case(
        "glm4",
        f"So.\n<tool_call>weather\n{GLM_PAIRS}</tool_call>\n"
        "<tool_call>stop\n</tool_call>",
        BOTH,
        "So.",
    ),
    Case(
        "glm4", f"<tool_call>weather{GLM_PAIRS}</tool_call>".replace("\n", ""), BOTH[:1]
    ),
    # minimax_m2
    Case(
        "minimax_m2",
        "I look.\n<minimax:tool_call>\n"
        '<invoke name="weather">\n<parameter name="city">Wien</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n'
        '<invoke name="stop">\n</invoke>\n</minimax:tool_call>\n',
        BOTH,
        "I look.",
    ),
    Case(
        "minimax_m2",
        '<minimax:tool_call><invoke name="weather"><parameter name="city">\n<b> "c" '
        "</parameter></invoke></minimax:tool_call>",
        [("weather", '{"city": "\\n<b> \\"c\\" "}')],
    ),
    # deepseek_v32
    Case(
        "deepseek_v32",
        "I look.\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Wien</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="stop">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        BOTH,
        "I look.",
    ),
    # lfm2
    Case(
        "lfm2",
        "<|tool_call_start|>[weather(city='Wien', days=3), stop()]<|tool_call_end|>So.",
        BOTH,
        "So.",
    ),
    Case("lfm2", f"<|tool_call_start|>[{CALL}, {STOP}]<|tool_call_end|>", BOTH),
    # The tool is unknown, but the tag says that it is a call.
    Case("lfm2", "<|tool_call_start|>[fly()]<|tool_call_end|>", [("fly", "{}")]),
    # nemotron_v2, jamba
    Case("nemotron_v2", f"<TOOLCALL>[{CALL}, {STOP}]</TOOLCALL>", BOTH),
    Case(
        "nemotron_v2",
        f"<TOOLCALL>[{CALL.replace(CITY, json.dumps(CITY))}]</TOOLCALL>\n",
        BOTH[:1],
    ),
    Case("jamba", f" <tool_calls>[\n    {CALL},\n    {STOP}\n]</tool_calls>", BOTH),
]

# Texts that are not calls.
LOOKALIKES = [
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call>\nno"),
    ("hermes", '<tool_call>{"nam": "weather", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "stop", "arguments": 7}</tool_call>'),
    ("hermes", '<tool_call>{"name": "stop", "arguments": "7"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "stop", "arguments": "{"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "stop", "arguments": "{\\"a\\": NaN}"}'),
    ("hermes", '<tool_call>{"name": "stop", "arguments": "{\\"a\\": \\"\\ud800\\"}"}'),
    ("hermes", '<tool_call>{"arguments": {"city": "Wien"}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"city": Wien}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "' + "a" * 2000 + '"}</tool_call>'),
    ("hermes", "</tool_call> <tool_cal <tool_call\n"),
    ("hermes", CALL),
    ("llama3_json", '{"name": "Bob", "parameters": {}}'),
    ("llama3_json", '{"answer": 42}'),
    ("llama3_json", f" So: {CALL}"),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("llama3_json", "{"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral", "[TOOL_CALLS] [1]"),
    ("mistral", "[TOOL_CALLS]weather[ARGS]7"),
    ("mistral", "[TOOL_CALLS]a b{}"),
    ("granite", "<|tool_call|>weather"),
    ("phi4_mini", "functools[1, 2]"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>weather<|"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>b c"),
    ("qwen3_coder", "<function=fly>\n</function>"),
    ("qwen3_coder", "<tool_call>\n<function>stop</function>"),
    ("qwen3_coder", "<tool_call><function=" + "a" * 300 + "></function>"),
    ("llama4_pythonic", "[1] Wien is a city."),
    ("llama4_pythonic", "[fly()]"),
    ("llama4_pythonic", "So: [stop()]"),
    ("llama4_pythonic", "[]"),
    ("functiongemma", "<start_function_call>weather{}"),
    ("gemma4", "<|tool_call>call:stop()"),
    ("glm4", "<tool_call> hello world </tool_call>"),
    ("glm4", CALL),
    ("minimax_m2", "<minimax:tool_call>\n</minimax:tool_call>"),
    ("minimax_m2", "<minimax:tool_call><invoke name=weather>"),
    ("minimax_m2", '<invoke name="stop">\n</invoke>'),
    ("deepseek_v32", "<｜DSML｜function_calls>\n<invoke>"),
    ("lfm2", "[stop()]"),
    ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>stop()<|tool_call_end|>"),
    ("nemotron_v2", f"<TOOLCALL>{CALL}</TOOLCALL>"),
    ("nemotron_v2", "<TOOLCALL>[]</TOOLCALL>"),
    ("jamba", "<tool_calls>none</tool_calls>"),
]


def cut(text: str, places: list[int]) -> list[str]:
    """Cut a text at places, which are taken modulo its length."""
    ends = sorted({place % (len(text) + 1) for place in places})
    bounds = [0, *ends, len(text)]
    return [text[begin:end] for begin, end in zip(bounds, bounds[1:])]


by_family = pytest.mark.parametrize("family", SCANNERS)


def find_cases(family: str, cases: list[Case] = CASES) -> list[Case]:
    return [case for case in cases if case.family == family]


@by_family
def test_calls_are_split_off(family: str) -> None:
    for case in find_cases(family):
        for pieces in ([case.written], list(case.written)):
            found = split(family, pieces)
            assert (found.text, found.calls) == (case.text, case.calls), case


def test_text_that_only_looks_like_a_call_stays_text() -> None:
    for family, text in LOOKALIKES:
        for pieces in ([text], list(text)):
            found = split(family, pieces)
            assert (found.calls, found.text) == ([], text), family


@by_family
def test_plain_text_passes_through(family: str) -> None:
    for text in ("", " ", "\n\nHi \n", "a < b {} [1]", "你好\t"):
        assert split(family, list(text) or [""]) == Split(text=text, calls=[], ids=[])


# Fragments of all formats, whole and broken, which meet in every order.
FRAGMENTS = sorted(
    {
        *(tag for scanner in SCANNERS.values() for tag in scanner.tags),
        *(tag[:-1] for scanner in SCANNERS.values() for tag in scanner.markers),
        *(
            "call:stop{",
            "call:weather{city:",
            "a:",
            '<|"|>Wi',
            "stop(",
            "a='",
            ")",
            "=",
            "functools[",
            "<function=",
            "stop",
            "weather",
            "</function>",
            ">",
            "city",
        ),
        *("<parameter=", "<parameter=days>", "</parameter>", "\n</parameter>", "```"),
        *("functions.stop:0", "```json", "function", "<arg_key>city</arg_key>"),
        *('{"name": "stop"', ', "arguments": ', '{"city": "Wi', '"', "\\", "\\u12"),
        *("{", "}", "[", "]", ",", ":", " ", "\n", "1", "-", "1.5e3", "null", "tru"),
        *('<invoke name="', '<parameter name="', '">', "</invoke>", "</parameter>"),
        *('<｜DSML｜invoke name="', '<｜DSML｜parameter name="', '" string="', "false"),
        *("</｜DSML｜parameter>", "</｜DSML｜invoke>", "<｜DSML｜function_calls>"),
        *(CALL, STOP, CITY, XML_CALL, GLM_PAIRS, ";", "你", "\x01", '{"a": [1, {}]}'),
    }
)


@given(
    family=st.sampled_from(sorted(SCANNERS)),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=12),
    places=st.lists(st.integers(0, 10_000), max_size=8),
    takes_one=st.booleans(),
    is_cut=st.booleans(),
)
def test_the_division_of_the_text_does_not_matter(
    family: str, fragments: list[str], places: list[int], takes_one: bool, is_cut: bool
) -> None:
    text = "".join(fragments)
    check_divisions(family, text, cut(text, places), takes_one, is_cut=is_cut)


@given(
    case=st.sampled_from(CASES),
    places=st.lists(st.integers(0, 10_000), max_size=8),
    change=st.tuples(st.integers(0, 10_000), st.sampled_from(FRAGMENTS)),
    takes_one=st.booleans(),
)
def test_a_call_may_break_anywhere(
    case: Case, places: list[int], change: tuple[int, str], takes_one: bool
) -> None:
    """A fragment somewhere in a call does not raise, whatever the division."""
    place, fragment = change
    before, *behind = cut(case.written, [place])
    text = before + fragment + "".join(behind)
    check_divisions(case.family, text, cut(text, places), takes_one)


def check_divisions(
    family: str, text: str, pieces: list[str], takes_one: bool, *, is_cut: bool = False
) -> None:
    whole = split(family, [text], takes_one=takes_one, is_cut=is_cut)
    for division in (pieces, list(text) or [""]):
        found = split(family, division, takes_one=takes_one, is_cut=is_cut)
        assert (found.text, found.calls) == (whole.text, whole.calls)
        assert found.reasoning == whole.reasoning
    if not whole.calls and not SCANNERS[family].splits_reasoning:
        assert text.startswith(whole.text) if is_cut else whole.text == text
    assert not takes_one or len(whole.calls) <= 1


COMPLETE = [case for case in CASES if not case.written.endswith("Wi")]


@by_family
def test_everything_behind_the_first_call_is_dropped_on_demand(family: str) -> None:
    for case in find_cases(family, COMPLETE):
        scanner = SCANNERS[family](TABLE, takes_one=True)
        deltas = []
        for character in case.written + "and more":
            text, calls = scanner.push(character)
            deltas.append(TextDelta(text=text, tool_calls=calls))
            if scanner.is_done:
                break
        joined = TextDelta.join(deltas)
        found = [(call.name, call.arguments) for call in joined.tool_calls]
        assert found == case.calls[:1], case
        assert case.text.startswith(joined.text)
        assert scanner.push("more") == ("", ())


@by_family
def test_arguments_arrive_while_they_are_written(family: str) -> None:
    """No family waits for the end of a call."""
    case = find_cases(family)[0]
    scanner = SCANNERS[family](TABLE)
    pieces: list[ToolCallDelta] = []
    for character in case.written[: case.written.index("Wien") + 2]:
        pieces += scanner.push(character)[1]
    joined = ToolCallDelta.join(pieces)
    assert joined.name == "weather"
    assert joined.arguments == '{"city": "Wi'


def test_each_call_has_an_id_of_its_own() -> None:
    written = f"<tool_call>{CALL}</tool_call><tool_call>{STOP}</tool_call>"
    ids = split("hermes", [written]).ids + split("hermes", [written]).ids
    assert len(set(ids)) == 4
    assert all(id_.startswith("call_") and len(id_) == 29 for id_ in ids)
    # Mistral's templates want this length.
    [call_id] = split("mistral", [f"[TOOL_CALLS] [{CALL}]"]).ids
    assert len(call_id) == 9 and call_id.isalnum()


def test_kimis_ids_are_the_models_own_and_unique() -> None:
    [case] = find_cases("kimi_k2")
    ids = split("kimi_k2", [case.written]).ids
    assert ids == ["functions.weather:0", "functions.stop:1"]
    # A grammar that forces calls gives each the number 0.
    written = case.written.replace("functions.stop:1", "functions.weather:0")
    ids = split("kimi_k2", [written]).ids
    assert ids == ["functions.weather:0", "functions.weather:1"]


@by_family
def test_a_call_that_is_cut_off_is_not_the_end(family: str) -> None:
    """It is max_tokens that ends such an answer, and not the call."""
    for case in find_cases(family, COMPLETE):
        scanner = SCANNERS[family](TABLE, takes_one=True)
        for character in case.written:
            if scanner.push(character)[1]:
                break
        # Some families announce a call when they have all of it.
        if not scanner.is_done:
            scanner.push("", is_last=True)
            assert not scanner.is_done, case


@by_family
def test_a_text_may_be_cut_off_anywhere(family: str) -> None:
    """The answer is the same for any division, and has no marker that is not its text."""
    for case in find_cases(family):
        complete = split(family, [case.written])
        for end in range(len(case.written) + 1):
            written = case.written[:end]
            whole = split(family, [written], is_cut=True)
            pieces = cut(written, [end // 2, end - 3])
            streamed = split(family, pieces, is_cut=True)
            assert (streamed.text, streamed.calls) == (whole.text, whole.calls)
            for (name, arguments), expected in zip(whole.calls, complete.calls):
                assert name == expected[0] and expected[1].startswith(arguments)
            for marker in SCANNERS[family].markers:
                assert whole.text.count(marker) <= case.text.count(marker), written
            # No text stands beside these calls, or in their reasoning.
            if not case.text and case in COMPLETE:
                forced = split(family, [written], is_cut=True, calls_only=True)
                assert forced.text.strip() == "", written


def test_a_text_that_is_cut_off_keeps_what_may_be_an_answer() -> None:
    assert split("hermes", ["1 <"], is_cut=True).text == "1 <"
    assert split("llama3_json", ['{"name": "Bo'], is_cut=True).text == '{"name": "Bo'
    assert split("gpt_oss", ["<|channel|>analysis<|message|>1 <"], is_cut=True) == (
        Split(text="", calls=[], ids=[], reasoning="1 <")
    )
    # It is not a call, whatever follows.
    broken = "<tool_call>no"
    assert split("hermes", [broken], is_cut=True).text == broken


# Calls with one parameter and its value.
WEATHER = {
    "qwen3_coder": "<tool_call><function=weather><parameter={}>{}</parameter>"
    "</function></tool_call>",
    "glm4": "<tool_call>weather<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call>",
    "minimax_m2": '<minimax:tool_call><invoke name="weather"><parameter name="{}">{}'
    "</parameter></invoke></minimax:tool_call>",
}


@pytest.mark.parametrize("family", WEATHER)
def test_values_without_quotes_follow_the_schema(family: str) -> None:
    rows: list[tuple[str, str, object]] = [
        ("city", "5", "5"),
        ("city", "", ""),
        ("city", "null", "null"),
        ("days", " 5 ", 5),
        ("days", "-1.5e3", -1500.0),
        ("days", "five", "five"),
        ("days", "", ""),
        ("days", "5 6", "5 6"),
        ("metric", "true", True),
        ("metric", "False", False),
        ("tags", '["a", 1]', ["a", 1]),
        ("tags", "['a']", "['a']"),
        ("tags", '["a', '["a'),
        ("place", '{"x": {"y": [null]}}', {"x": {"y": [None]}}),
        ("code", "null", None),
        ("code", "None", None),
        ("code", "nullable", "nullable"),
        ("code", "5", "5"),
        ("either", "null", None),
        ("either", "7", 7),
        ("anything", "7", "7"),
        ("unknown", "7", "7"),
    ]
    for parameter, written, value in rows:
        text = WEATHER[family].format(parameter, written)
        for pieces in ([text], list(text)):
            [(_, arguments)] = split(family, pieces).calls
            assert json.loads(arguments) == {parameter: value}, written


def test_parameters_of_deepseek_v32_say_whether_they_are_texts() -> None:
    rows: list[tuple[str, str, str, object]] = [
        ("city", "true", "5", "5"),
        # The schema knows better.
        ("city", "false", "5", "5"),
        ("days", "true", "5", "5"),
        ("days", "false", "5", 5),
        ("days", "false", "five", "five"),
        ("code", "false", "null", None),
        ("code", "true", "null", "null"),
        ("unknown", "false", '{"a": [1]}', {"a": [1]}),
        ("unknown", "true", "null", "null"),
    ]
    for parameter, is_text, written, value in rows:
        text = (
            '<｜DSML｜function_calls><｜DSML｜invoke name="weather"><｜DSML｜parameter '
            f'name="{parameter}" string="{is_text}">{written}</｜DSML｜parameter>'
            "</｜DSML｜invoke></｜DSML｜function_calls>"
        )
        for pieces in ([text], list(text)):
            [(_, arguments)] = split("deepseek_v32", pieces).calls
            assert json.loads(arguments) == {parameter: value}, (is_text, written)


THOUGHT = "<|channel|>analysis<|message|>I look.<|end|>"


def test_channels_of_gpt_oss() -> None:
    for written, text, calls, reasoning in (
        (
            f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>It rains.",
            *("It rains.", [], "I look."),
        ),
        (
            f"{THOUGHT}<|start|>assistant{THOUGHT}<|start|>assistant"
            "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant"
            f"<|channel|>commentary to=functions.weather json<|message|>{CITY}<|call|>",
            *("Wait.", BOTH[:1], "I look.\nI look."),
        ),
        (
            "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant"
            "<|channel|>final<|message|>It rains.<|return|>",
            *("Wait.\nIt rains.", [], ""),
        ),
        # The recipient may stand before the channel.
        (
            f" to=functions.weather<|channel|>commentary json<|message|>{CITY}",
            *("", BOTH[:1], ""),
        ),
        ("No header <at> all.", "No header <at> all.", [], ""),
        ("<|channel|>final<|message|>Cut <|end", "Cut <|end", [], ""),
        ("<|channel|>analysis<|message|>Cut", "", [], "Cut"),
        # Not a call, because it has no object.
        (
            "<|channel|>commentary to=python code<|message|>print(1)<|call|>",
            *("print(1)", [], ""),
        ),
        ("<|channel|>final and a b c d e f g h i", None, [], ""),
        ('{"a": 1}', '{"a": 1}', [], ""),
    ):
        for pieces in ([written], list(written)):
            found = split("gpt_oss", pieces)
            assert found.text == (written if text is None else text)
            assert found.calls == calls, written
            assert found.reasoning == reasoning, written


def test_without_tools_gpt_oss_calls_nothing() -> None:
    written = f"<|channel|>commentary to=functions.weather<|message|>{CITY}<|call|>"
    assert GptOssScanner(ToolTable(())).push(written, is_last=True) == (CITY, ())


HOSTILE = [
    ("gpt_oss", "<|channel|>"),
    ("gpt_oss", "<|channel|>analysis<|message|>"),
    ("gpt_oss", "<|start|>a to=b "),
    ("gpt_oss", "a "),
    ("gpt_oss", "<|"),
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call>\n{"),
    ("hermes", "<tool_cal"),
    ("hermes", ' {"name": "stop", "arguments": {'),
    ("hermes", "\\"),
    ("llama3_json", "<|python_tag|>{"),
    ("mistral", "[TOOL_CALLS]["),
    ("qwen3_coder", "\n</parameter"),
    ("qwen3_coder", "<parameter=a>"),
    ("glm4", "<arg_key>a</arg_key><arg_value>"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>"),
    ("gemma4", "["),
    ("llama4_pythonic", "["),
    ("llama4_pythonic", "\\"),
    ("llama4_pythonic", "{'a':"),
    ("gemma4", "{a:"),
    ("gemma4", "a:1,"),
    ("gemma4", '<|"|'),
    ("minimax_m2", '<parameter name="a">'),
    ("minimax_m2", "</parameter"),
    ("deepseek_v32", "<｜DSML｜"),
    ("lfm2", "[{"),
]
BEGINNINGS = {
    "hermes": '<tool_call>{"name": "stop", "arguments": {"a": "',
    "qwen3_coder": "<function=weather><parameter=tags>[",
    "gemma4": "<|tool_call>call:stop{",
    "llama4_pythonic": "[stop(a='",
    "glm4": "<tool_call>weather<arg_key>tags</arg_key><arg_value>[",
    "minimax_m2": '<minimax:tool_call><invoke name="weather"><parameter name="tags">[',
    "lfm2": '<|tool_call_start|>[{"name": "',
}


@pytest.mark.parametrize(("family", "part"), HOSTILE)
def test_the_work_grows_with_the_text_and_no_faster(family: str, part: str) -> None:
    """Twice the text takes twice the calls of functions."""
    for beginning in {"", BEGINNINGS.get(family, "")}:
        short, long = (
            count_calls(family, beginning + part * number) for number in (100, 200)
        )
        assert long < 2.2 * short + 200, beginning


def count_calls(family: str, text: str) -> int:
    """Count the functions that a scanner calls for a text in pieces of 4 characters."""
    num_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    scanner = SCANNERS[family](TABLE)
    pieces = [text[begin : begin + 4] for begin in range(0, len(text), 4)]
    sys.setprofile(count)
    try:
        for piece in pieces:
            scanner.push(piece)
        scanner.push("", is_last=True)
    finally:
        sys.setprofile(None)
    return num_calls


def test_a_template_tells_its_family() -> None:
    for family, template in (
        *((name, " ".join(each.template_parts)) for name, each in SCANNERS.items()),
        ("hermes", '<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": ...'),
        ("qwen3_coder", "<tool_call>\n<function=a>\n<parameter=b> arguments"),
        ("glm4", "<tool_call>name<arg_key>a</arg_key><arg_value> arguments"),
        # Nemotron 3
        (
            "qwen3_coder",
            "reply in the following format\\n<tool_call>\\n<function=example_function_name>"
            "\\n<parameter=example_parameter_1>\\nvalue_1\\n</parameter>\\n</function>",
        ),
        (
            "minimax_m2",
            "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}<invoke name=\"a\">"
            "{% set _args = tool_call.arguments %}",
        ),
        (
            "deepseek_v32",
            '{%- set dsml_token = "｜DSML｜" -%}<{{ dsml_token }}function_calls>\n'
            '<{{ dsml_token }}invoke name="{{ name }}">{{ tool_call.arguments }}',
        ),
        # DeepSeek V3.2-Exp
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}"),
        ("lfm2", '"<|im_start|>system\\nList of tools: <|tool_list_start|>["'),
        ("hermes", 'List of tools: <tool_call>{"name": <name>, "arguments": <args>}'),
        ("hermes", "<tool_calls> <tool_call> arguments"),
        ("jamba", "'<tool_calls>[' + '{\"name\": ' + name + ', \"arguments\": '"),
        ("none", "{% for m in messages %}{{ m.content }}{% endfor %}"),
        ("none", "{% if tools %}{{ tools | tojson }}{% endif %}"),
    ):
        assert recognise_family(template, lambda token: 0) == family, template


def test_a_template_that_shows_no_calls_needs_a_tokenizer_with_their_tags() -> None:
    template = "List of tools: {{ tools | tojson }}"
    for tags, family in (
        ([], "none"),
        (["<|tool_call_start|>"], "none"),
        (["<|tool_call_start|>", "<|tool_call_end|>"], "lfm2"),
    ):
        assert recognise_family(template, dict.fromkeys(tags, 7).get) == family
