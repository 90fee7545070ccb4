"""Answers with a form, from official clients to a server with a tiny random model.

A random model has no wish to write JSON: only the grammar makes it do so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import Enum
import json
from pathlib import Path
import re
import threading
from typing import Annotated, Any

import jsonschema
import openai
from pydantic import BaseModel, Field
import pytest
import trio

import trioserve
from trioserve.grammar.guide import Guide, Mask

pytestmark = [
    pytest.mark.slow,
    # The client (3.54) leaves generators of its HTTP library to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODEL = "tiny-llama"
MESSAGES: list[Any] = [{"role": "user", "content": "Describe a person."}]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)
    color: Color
    # Without a limit, a sampled text may go on to the end.
    tags: list[Annotated[str, Field(max_length=8)]] = Field(max_length=2)


@pytest.fixture
async def client(server: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    with trio.fail_after(180):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            yield client


# Their texts are short, because a random model writes on and on. tests/grammar has more.
LETTERS = {"type": "string", "pattern": "^[a-z]{1,5}$"}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 6},
    {"type": "string", "format": "uuid"},
    {"type": "integer", "minimum": 0, "maximum": 40, "multipleOf": 7},
    {"enum": ["a", 1, None, {"b": [True]}, "é🙂\n"]},
    {"anyOf": [LETTERS, {"type": "integer", "minimum": -9, "maximum": 9}]},
    {"type": "array", "prefixItems": [LETTERS, {"const": [1]}], "items": False},
    {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "type": "object",
            "properties": {"b c": LETTERS, 'q"': {"type": ["boolean", "null"]}},
            "required": ["b c"],
            "additionalProperties": False,
        },
    },
]


async def ask(client: openai.AsyncOpenAI, **options: Any) -> Any:
    options = {"max_tokens": 400, "temperature": 1, "seed": 1, **options}
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, **options
    )
    return answer.choices[0]


def make_format(schema: object) -> dict[str, Any]:
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


async def test_answers_match_their_schemas_or_end_by_length(
    client: openai.AsyncOpenAI,
) -> None:
    finished: list[str] = []

    async def check(schema: dict[str, Any], seed: int) -> None:
        choice = await ask(
            client, temperature=min(seed, 1), seed=seed, **make_format(schema)
        )
        finished.append(choice.finish_reason)
        if choice.finish_reason == "stop":
            jsonschema.validate(
                json.loads(choice.message.content),
                schema,
                format_checker=jsonschema.FormatChecker(),
            )
        else:
            assert choice.finish_reason == "length"

    async with trio.open_nursery() as nursery:
        for schema in SCHEMAS:
            for seed in range(3):
                nursery.start_soon(check, schema, seed)
    assert finished.count("stop") > 0.9 * len(finished)


async def test_the_client_parses_a_pydantic_model(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL,
        messages=MESSAGES,
        response_format=Person,
        n=4,
        seed=3,
        max_tokens=400,
        frequency_penalty=0.5,
    )
    people = [choice.message.parsed for choice in answer.choices]
    assert all(isinstance(person, Person) for person in people)
    assert len(set(map(repr, people))) > 1, "each sequence has its own state"


async def test_a_streamed_answer_is_the_whole_one(client: openai.AsyncOpenAI) -> None:
    options: Any = {"seed": 5, "max_tokens": 400}
    async with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Person, **options
    ) as stream:
        streamed = await stream.get_final_completion()
    whole = await client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Person, **options
    )
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


async def test_a_response_has_the_form_of_a_chat(client: openai.AsyncOpenAI) -> None:
    options: Any = {"temperature": 0, "model": MODEL}
    chat = await client.chat.completions.parse(
        messages=MESSAGES, response_format=Person, max_tokens=400, **options
    )
    response = await client.responses.parse(
        input=MESSAGES, text_format=Person, max_output_tokens=400, **options
    )
    assert isinstance(response.output_parsed, Person)
    assert response.output_parsed == chat.choices[0].message.parsed
    assert response.text is not None and response.text.format is not None
    assert response.text.format.type == "json_schema"
    async with client.responses.stream(
        input=MESSAGES, text_format=Person, max_output_tokens=400, **options
    ) as stream:
        streamed = await stream.get_final_response()
    assert streamed.output_parsed == response.output_parsed
    with pytest.raises(openai.BadRequestError) as caught:
        wrong: Any = {"type": "json_schema", "name": "a", "schema": {"not": {}}}
        await client.responses.create(input="a", text={"format": wrong}, **options)
    assert caught.value.param == "text.format"


@pytest.fixture
def program(server: Any) -> str:
    """The program of docs/, for this server."""
    page = Path(__file__).parents[2] / "docs/structured-output.rst"
    block = re.findall(r":: python\n\n((?:    .*\n|\n)+)", page.read_text())[0]
    lines = "\n".join(line[4:] for line in block.splitlines())
    changes = {"http://localhost:8000": server.url, "SmolLM2-135M-Instruct": MODEL}
    for old, new in changes.items():
        assert old in lines
        lines = lines.replace(old, new)
    # A random name would be longer than the answer.
    return lines.replace("name: str", "name: bool")


def test_the_program_of_the_page_runs(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    assert re.match(r"name=(True|False) age=-?\d+", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"structured_outputs": {"regex": r"\d{3}-[x-z]{2}"}}, r"\d{3}-[x-z]{2}"),
        ({"structured_outputs": {"choice": ["yes", "n o"]}}, "yes|n o"),
        ({"structured_outputs": {"grammar": 'start: "(" start ")" | "x"'}}, r"\(*x\)*"),
        ({"structured_outputs": {"json": '{"enum": [1, 22]}'}}, "1|22"),
        ({"guided_regex": "a{2,4}b"}, "a{2,4}b"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_json": {"const": "c"}}, '"c"'),
        ({"guided_grammar": 'start: "a" | "bb"'}, "a|bb"),
    ],
    ids=str,
)
async def test_every_kind_of_form_is_taken_in_chats_and_completions(
    client: openai.AsyncOpenAI, form: dict[str, Any], pattern: str
) -> None:
    choice = await ask(client, extra_body=form)
    assert choice.finish_reason == "stop"
    assert re.fullmatch(pattern, choice.message.content)
    text = await client.completions.create(
        model=MODEL, prompt="It is", max_tokens=100, extra_body=form
    )
    assert re.fullmatch(pattern, text.choices[0].text)


async def test_a_stop_string_ends_the_answer_early(client: openai.AsyncOpenAI) -> None:
    form = {"structured_outputs": {"choice": ["one, two"]}}
    choice = await ask(client, stop=[","], extra_body=form)
    assert choice.message.content == "one" and choice.stop_reason == ","


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (make_format({"not": {}}), "response_format.json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"extra_body": {"structured_outputs": {}}}, "structured_outputs"),
        (
            {"extra_body": {"structured_outputs": {"regex": "("}}},
            "structured_outputs.regex",
        ),
        (
            {"extra_body": {"guided_regex": "a", "guided_choice": ["b"]}},
            "guided_choice",
        ),
        (
            {"extra_body": {"structured_outputs": {"json": {}, "min_tokens": 3}}},
            None,
        ),
        ({"extra_body": {"guided_regex": "a", "min_tokens": 3}}, "min_tokens"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "a"}}},
            "response_format.json_schema",
        ),
        (
            {
                "extra_body": {
                    "structured_outputs": {"regex": "a", "disable_any_whitespace": True}
                }
            },
            "structured_outputs.disable_any_whitespace",
        ),
        ({"extra_body": {"guided_regex": "a", "ignore_eos": True}}, "ignore_eos"),
        (make_format({"enum": ["x" * 300_000]}), "response_format.json_schema"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_cannot_be_honoured_is_refused(
    client: openai.AsyncOpenAI, options: dict[str, Any], param: str | None
) -> None:
    if param is None:
        # An unknown key of the object is ignored, as elsewhere.
        assert (await ask(client, **options)).finish_reason in ("stop", "length")
        return
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, **options)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["yes"], "bad_words": ["y", "ye", "yes"]},
        {"allowed_token_ids": [5], "min_tokens": 2, "stop_token_ids": [5]},
        {"allowed_token_ids": [4], "bad_words": ["##"]},
    ],
)
async def test_an_answer_without_a_token_left_ends_with_an_error(
    client: openai.AsyncOpenAI, fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match="no token is left") as caught:
        await ask(client, extra_body=fields)
    assert caught.value.param == next(iter(fields))
    # The server goes on.
    assert (
        await ask(client, extra_body={"guided_choice": ["b"]})
    ).message.content == "b"


async def test_an_error_within_a_stream_is_an_event(client: openai.AsyncOpenAI) -> None:
    form = {"guided_choice": ["ab"], "bad_words": ["b", "ab"]}
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, extra_body=form
    )
    with pytest.raises(openai.APIError, match="no token is left"):
        async for _ in stream:
            pass


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_grammar_whose_masks_never_come_holds_nobody_up(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Its own sequences go on when a mask comes."""
    may_come = threading.Event()
    num_blocked = 0
    write = Guide.write_mask

    def write_mask(guide: Guide, mask: Mask) -> None:
        nonlocal num_blocked
        if not may_come.is_set():
            num_blocked += 1
            may_come.wait(60.0)
        write(guide, mask)

    slow = trioserve.StructuredOutput(kind="choice", choices=("one, two, three",))
    with trio.fail_after(60):
        async with trioserve.open_engine(
            str(model_folder),
            kv_cache_memory="64MiB",
            num_threads=1,
            async_scheduling=depth == 2,
        ) as engine:
            # Only now: a thread of an engine before may still end its last mask.
            monkeypatch.setattr(Guide, "write_mask", write_mask)
            async with engine.open_completion(
                "a", structured=slow, n=8, temperature=0.0, max_tokens=40
            ) as blocked:
                bystander = engine.open_completion(
                    "b", temperature=0.0, max_tokens=60, ignore_eos=True
                )
                async with bystander as stream:
                    [answer] = await stream.collect()
                assert len(answer.token_ids) == 60 and num_blocked == 1
                statistics = engine.engine.statistics().scheduler
                assert statistics.num_running == 8, "they keep their slots"
                may_come.set()
                answers = await blocked.collect()
    assert [each.text for each in answers] == ["one, two, three"] * 8


def write_chain(length: int) -> str:
    """Write a schema whose definitions refer to each other in a row."""
    parts = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**parts, f"d{length}": {}}})


# Values that nobody sends by mistake. The first ones are refused.
HOSTILE: dict[str, dict[str, Any]] = {
    "1 MB": {"guided_json": {"enum": ["x" * 1_000_000]}},
    "enum": {"guided_json": {"enum": [f"{i:020}" for i in range(20_000)]}},
    "nested schema": {"guided_json": json.loads('{"items":' * 200 + "{}" + "}" * 200)},
    "chain": {"guided_json": json.loads(write_chain(5000))},
    "parentheses": {"guided_grammar": "start: " + "(" * 50_000 + '"a"' + ")" * 50_000},
    "rules": {"guided_grammar": "".join(f"a{i}: a{i + 1}\n" for i in range(20_000))},
    "nothing": {"guided_grammar": "start: start"},
    "expression": {"guided_regex": "(" * 50_000 + "a" + ")" * 50_000},
    "unions": {
        "guided_json": {
            "allOf": [
                {"anyOf": [{"minLength": i}, {"maxLength": i}]} for i in range(30)
            ]
        }
    },
    "plus": {"guided_regex": "(a+)+$"},
    "repeats": {"guided_regex": "((a{1,100}){1,100}){1,100}"},
    "ambiguous": {"guided_grammar": 'start: a\na: a a | /[a-z ]/ | /[a-z]+/ | ""'},
}
NUM_REFUSED = 9


async def test_hostile_forms_end_while_a_bystander_goes_on(
    client: openai.AsyncOpenAI,
) -> None:
    refused: list[str] = []

    async def send(name: str) -> None:
        try:
            await ask(client, n=4, max_tokens=30, extra_body=HOSTILE[name])
        except openai.BadRequestError as error:
            # The fields of a body are counted before it is known where they are.
            assert error.param in (None, *HOSTILE[name])
            refused.append(name)

    with trio.fail_after(60):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            stream=True,
            max_tokens=100,
            extra_body={"ignore_eos": True},
        )
        async with trio.open_nursery() as nursery:
            for name in HOSTILE:
                nursery.start_soon(send, name)
            reasons = [each.choices[0].finish_reason async for each in stream]
    assert reasons[-1] == "length"
    assert set(refused) >= set([*HOSTILE][:NUM_REFUSED])


# Ends inside the reasoning, as the templates of many reasoning models do.
THINKING_TEMPLATE = "{{ messages[0]['content'] }}<think>\n"


async def test_reasoning_comes_before_the_form(
    model_folder: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(THINKING_TEMPLATE)
    with trio.fail_after(180):
        async with trioserve.open_engine(
            str(model_folder),
            kv_cache_memory="64MiB",
            num_threads=1,
            reasoning_parser="qwen3",
            chat_template=str(template),
        ) as engine:
            form = trioserve.StructuredOutput(kind="choice", choices=("yes", "no"))
            async with engine.open_chat(
                MESSAGES,
                structured=form,
                thinking_token_budget=8,
                temperature=1.0,
                max_tokens=100,
                n=4,
            ) as stream:
                answers = await stream.collect()
    for answer in answers:
        assert answer.finish_reason == "stop"
        assert answer.text in ("yes", "no")
        assert answer.num_reasoning_tokens >= 8
