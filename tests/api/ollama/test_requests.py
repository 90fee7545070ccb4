"""Requests of Ollama's API become chats, or are refused by the name of the field."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from trioserve.api.ollama.body import (
    GENERATE_BODY,
    OLLAMA_CHAT_BODY,
    OLLAMA_EMBED_BODY,
    OLLAMA_EMBEDDING_BODY,
    SHOW_BODY,
)
from trioserve.api.ollama.chat import explain_fields, list_messages, locate_prompt
from trioserve.api.ollama.messages import OllamaMappings
from trioserve.errors import InvalidParameter, RequestError
from trioserve.render import Base64Image

ASK: dict[str, Any] = {
    "model": "fake",
    "messages": [{"role": "user", "content": "Hello"}],
}
PROMPT: dict[str, Any] = {"model": "fake", "prompt": "Hello"}


def decode_chat(**fields: Any) -> Any:
    return OLLAMA_CHAT_BODY.decode(json.dumps(ASK | fields).encode())


def decode_prompt(**fields: Any) -> Any:
    return GENERATE_BODY.decode(json.dumps(PROMPT | fields).encode())


def decode_texts(**fields: Any) -> Any:
    return OLLAMA_EMBED_BODY.decode(json.dumps({"model": "fake", **fields}).encode())


def decode_text(**fields: Any) -> Any:
    body = json.dumps({"model": "fake", **fields})
    return OLLAMA_EMBEDDING_BODY.decode(body.encode())


def map_messages(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return list(OllamaMappings(decode_chat(messages=messages).messages))


def test_what_has_no_meaning_here_is_refused_by_name() -> None:
    rows: list[tuple[Any, dict[str, Any], str]] = [
        (decode_chat, {"options": {"mirostat": 1}}, "options.mirostat"),
        (decode_chat, {"options": {"num_gpu": 1}}, "options.num_gpu"),
        (decode_chat, {"options": {"num_thread": 8}}, "options.num_thread"),
        (decode_chat, {"options": {"num_batch": 2}}, "options.num_batch"),
        (decode_chat, {"options": {"use_mlock": True}}, "options.use_mlock"),
        (
            *(decode_chat, {"options": {"penalize_newline": False}}),
            "options.penalize_newline",
        ),
        (decode_chat, {"options": {"num_predict": 0}}, "options.num_predict"),
        (decode_chat, {"options": {"num_predict": -3}}, "options.num_predict"),
        (decode_chat, {"options": {"num_ctx": 0}}, "options.num_ctx"),
        (decode_chat, {"options": {"temprature": 1}}, "options.temprature"),
        (decode_chat, {"options": {"stop": "x" * 10_000}}, "options.stop"),
        (decode_chat, {"options": [1]}, "options"),
        (decode_chat, {"top_k": 1}, "top_k"),
        (decode_chat, {"max_output_tokens": 0}, "max_output_tokens"),
        (decode_chat, {"max_tokens": 1}, "max_tokens"),
        (decode_chat, {"tool_choice": "soon"}, "tool_choice"),
        (decode_chat, {"_debug_render_only": True}, "_debug_render_only"),
        (decode_chat, {"truncate": True}, "truncate"),
        (decode_chat, {"shift": True}, "shift"),
        (decode_chat, {"think": "much"}, "think"),
        (decode_chat, {"keep_alive": "soon"}, "keep_alive"),
        (decode_chat, {"keep_alive": "9" * 100}, "keep_alive"),
        (decode_chat, {"keep_alive": [1]}, "keep_alive"),
        (decode_chat, {"model": ""}, "model"),
        (decode_chat, {"messages": [{"content": "Hi"}]}, "messages[0].role"),
        (decode_chat, {"messages": [{"role": "user", "images": "a"}]}, "messages"),
        (decode_prompt, {"context": [1, 2]}, "context"),
        (decode_prompt, {"template": "{{ .Prompt }}"}, "template"),
        (decode_prompt, {"raw": True, "system": "Be kind."}, "system"),
        (decode_prompt, {"suffix": "b", "images": ["a"]}, "images"),
        (decode_prompt, {"width": 512}, "width"),
        (decode_prompt, {"tools": [{}]}, "tools"),
        (decode_prompt, {"tool_choice": "required"}, "tool_choice"),
        (decode_texts, {"prompt": "Hello"}, "prompt"),
        (decode_text, {"input": ["Hello"]}, "input"),
        (decode_text, {"dimensions": 4}, "dimensions"),
        (decode_text, {"truncate": False}, "truncate"),
    ]
    for decode, fields, name in rows:
        with pytest.raises(RequestError) as caught:
            decode(**fields)
        assert str(caught.value).startswith(name), (fields, str(caught.value))
        assert (caught.value.param or "").startswith(name), fields


def test_what_is_true_here_is_taken() -> None:
    for options in (
        {"num_gpu": -1, "num_thread": 0, "use_mmap": True, "mirostat": 0},
        {"num_predict": -1, "num_keep": 5, "mirostat_tau": 0.8, "typical_p": 1.0},
        {"repeat_last_n": 64, "penalize_newline": True, "num_predict": -2},
        {"temperature": None, "num_gpu": None, "of_the_future": 1},
    ):
        decode_chat(options=options)
    for keep_alive in (300, -1, 1.5, "5m", "1h30m", "-1", "-1s", "0.5h", "1500ms"):
        decode_chat(keep_alive=keep_alive).check_load()
    decode_chat(truncate=False, shift=False, think=None, format="")
    decode_prompt(template="", context=[], suffix="", images=[], raw=False)
    decode_prompt(width=0, tools=[], tool_choice="auto")
    decode_text(input=[], truncate=True)


def test_a_request_that_only_unloads_the_model_is_refused() -> None:
    for keep_alive in (0, 0.0, "0", "0s", "0m0.0s", "-0h"):
        body = decode_chat(messages=[], keep_alive=keep_alive)
        with pytest.raises(RequestError, match="^keep_alive is not supported"):
            body.check_load()


def test_the_form_of_an_answer_is_json_a_schema_or_free() -> None:
    schema = {"type": "object"}
    assert decode_chat().response_format is None
    assert decode_chat(format=None).response_format is None
    assert decode_chat(format="json").response_format.type == "json_object"
    form = decode_chat(format=schema).response_format
    assert msgspec.json.decode(form.json_schema.schema) == schema
    for wrong in ("xml", "jsonx", 1, ["json"], True):
        with pytest.raises(InvalidParameter, match="^format: must be "):
            _ = decode_chat(format=wrong).response_format


def test_messages_have_the_form_of_chats() -> None:
    data = base64.b64encode(b"an image").decode()
    first, second = map_messages(
        {"role": "System", "content": "Be kind."},
        {"role": "user", "content": "What is this?", "images": [data, data]},
    )
    assert first == {"role": "system", "content": "Be kind."}
    *images, text = second["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert len(images) == 2
    for image in images:
        url = image["image_url"]["url"]
        assert isinstance(url, Base64Image) and bytes(url.data) == data.encode()
    [message] = map_messages({"role": "assistant", "content": "", "thinking": "Hm."})
    assert message == {"role": "assistant", "content": "", "reasoning": "Hm."}


def test_results_find_their_calls_without_ids() -> None:
    """Ollama's clients have no ids, but some templates need them."""

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": arguments}}

    def result(name: str | None) -> dict[str, Any]:
        return {"role": "tool", "content": "Yes.", "tool_name": name}

    calls, *results = map_messages(
        {"role": "assistant", "tool_calls": [call("a"), call("b", x=1), call("a")]},
        *map(result, ("b", "a", "a", None, "c")),
    )
    assert calls["tool_calls"][1] == {
        "id": "call00001",
        "type": "function",
        "function": {"name": "b", "arguments": {"x": 1}},
    }
    ids = [each.get("tool_call_id") for each in results]
    assert ids == ["call00001", "call00000", "call00002", None, None]
    assert [each.get("name") for each in results] == ["b", "a", "a", None, "c"]
    own = {"id": "mine", **call("a")}
    _, answered = map_messages(
        {"role": "assistant", "tool_calls": [call("a"), own]},
        {"role": "tool", "content": "Yes.", "tool_call_id": "mine"},
    )
    assert answered["tool_call_id"] == "mine"


def test_errors_name_the_place_that_the_client_sent() -> None:
    messages = OllamaMappings(
        decode_chat(
            messages=[{"role": "user", "content": "a", "images": ["b"]}]
        ).messages
    )
    body = decode_prompt(system="Be kind.", images=["b"])
    prompt = OllamaMappings(list_messages(body))
    for name, chat_name, prompt_name in (
        ("messages[0].content[0]", "messages[0].images[0]", "system"),
        ("messages[0].content[1].text", "messages[0].content", "system"),
        ("messages[0].role", "messages[0].role", "system"),
        ("top_p", "options.top_p", "options.top_p"),
        ("max_tokens", "options.num_predict", "options.num_predict"),
        ("stop[1]", "options.stop[1]", "options.stop[1]"),
        ("response_format.json_schema", "format", "format"),
        ("tools[0].function.name", "tools[0].function.name", "tools[0].function.name"),
    ):
        with pytest.raises(RequestError) as caught:
            with explain_fields(messages.locate):
                raise InvalidParameter(name, "is wrong")
        assert str(caught.value) == f"{chat_name}: is wrong"
        with pytest.raises(RequestError) as caught:
            with explain_fields(lambda each: locate_prompt(body, prompt.locate(each))):
                raise InvalidParameter(name, "is wrong")
        assert str(caught.value) == f"{prompt_name}: is wrong"
    assert locate_prompt(body, prompt.locate("messages[1].content[0]")) == "images[0]"
    assert locate_prompt(body, prompt.locate("messages[1].content[1]")) == "prompt"


def test_images_of_megabytes_are_not_decoded() -> None:
    data = "A" * 600_000
    body = decode_chat(
        messages=[{"role": "user", "content": "a", "images": [data, data]}]
    )
    assert [len(memoryview(each)) for each in body.messages[0].images] == [600_002] * 2
    images = decode_prompt(images=[data, data]).images
    assert [bytes(each) for each in images] == [f'"{data}"'.encode()] * 2


def test_texts_to_embed_and_names_to_show() -> None:
    assert decode_texts(input="a").texts == ("a",)
    assert decode_texts(input=["a", ""]).texts == ("a", "")
    for empty in ({"input": ""}, {"input": []}, {}):
        assert decode_texts(**empty).texts == ()
    for wrong in (1, [1], {"a": 1}):
        with pytest.raises(InvalidParameter, match="^input"):
            decode_texts(input=wrong)
    assert SHOW_BODY.decode(b'{"name": "a"}').name == "a"
    with pytest.raises(InvalidParameter, match="^model: is required"):
        SHOW_BODY.decode(b'{"verbose": true}')
