"""Taking payloads out of a body does not change the decoded request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import json
from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import msgspec
import pytest

from trioserve.api.anthropic.body import MESSAGES_BODY
from trioserve.api.anthropic.turn_mappings import TurnMappings
from trioserve.api.chat.body import CHAT_BODY, CHAT_PAYLOADS
from trioserve.api.completions.body import COMPLETION_BODY
from trioserve.api.decode import decoder
from trioserve.api.decode.payloads import take_out
from trioserve.api.shared.message_mappings import MessageMappings
from trioserve.errors import RequestError

decode_chat = CHAT_BODY.decode
decode_completion = COMPLETION_BODY.decode


LONG = "QUJD" * 300_000


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def test_payloads_that_are_taken_out_are_put_back() -> None:
    body = json.dumps(
        {"prompt": LONG, "prompt_embeds": [LONG, "x", LONG + "RA=="], "user": "ann"}
    ).encode()
    rest, strings = take_out(body, CHAT_PAYLOADS.keys)
    assert len(strings) == 2 and len(rest) < len(body) / 2
    request = decode_completion(body)
    assert request.prompt == LONG
    assert request.user == "ann"
    assert request.prompt_embeds == (LONG.encode(), b"x", LONG.encode() + b"RA==")


def test_one_tensor_without_a_list() -> None:
    body = json.dumps({"prompt_embeds": LONG}).encode()
    assert decode_completion(body).prompt_embeds == (LONG.encode(),)


@pytest.mark.parametrize("indent", [None, 2])
def test_images_and_tensors_of_a_chat(indent: int | None) -> None:
    body = user(
        {"type": "text", "text": LONG},
        {"type": "image_url", "image_url": {"detail": "high", "url": f"data:,{LONG}"}},
        {"type": "image_url", "image_url": f"data:{LONG}"},
        {"type": "image_url", "image_url": {"url": "data:short"}},
        {"type": "prompt_embeds", "prompt_embeds": LONG},
    )
    encoded = json.dumps(body, indent=indent).encode()
    rest, strings = take_out(encoded, CHAT_PAYLOADS.keys)
    assert len(strings) == 3 and len(rest) < len(LONG) + 2000
    (message,) = MessageMappings(decode_chat(encoded).messages)
    text, first, second, short, embeds = message["content"]  # type: ignore[misc]
    assert text["text"] == LONG  # type: ignore[index]
    assert first["image_url"]["url"] == f"data:,{LONG}".encode()  # type: ignore[index]
    assert second["image_url"]["url"] == f"data:{LONG}".encode()  # type: ignore[index]
    assert short["image_url"]["url"] == b"data:short"  # type: ignore[index]
    assert embeds["prompt_embeds"] == LONG.encode()  # type: ignore[index]


def test_escaped_payloads_are_left_to_the_decoder() -> None:
    body = b'{"prompt_embeds":"%b\\/"}' % LONG.encode()
    assert take_out(body, CHAT_PAYLOADS.keys) == (body, {})
    assert decode_completion(body).prompt_embeds == (LONG.encode() + b"/",)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'"',
        b'{"prompt_embeds":"' + LONG.encode(),
        b'{"prompt_embeds"' + b" " * 2_000_000,
        b"\\" * 2_000_000,
        b'"' * 2_000_001,
        b'{"prompt_embeds":"' + LONG.encode() + b'"',
    ],
)
def test_a_body_that_is_not_json_is_still_refused(body: bytes) -> None:
    rest, _ = take_out(body, CHAT_PAYLOADS.keys)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(rest)


TEXT = st.text(alphabet='ab"\\:,{}[]/\u00e9 ', max_size=12)
PAYLOAD = TEXT | st.text("ABC=", min_size=8, max_size=30)
DETAIL = st.sampled_from(["auto", "high", "low", "x", 7])
PART = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": PAYLOAD}),
    st.fixed_dictionaries(
        {
            "type": st.just("image_url"),
            "image_url": PAYLOAD
            | st.fixed_dictionaries({"url": PAYLOAD}, optional={"detail": DETAIL}),
        }
    ),
    st.fixed_dictionaries({"type": st.just("prompt_embeds"), "prompt_embeds": PAYLOAD}),
)
OTHER = st.dictionaries(
    st.sampled_from(["url", "prompt_embeds", "image_url", "x", 'a"b', "k\\"]),
    PAYLOAD
    | st.lists(PAYLOAD, max_size=3)
    | st.dictionaries(TEXT, PAYLOAD, max_size=2),
    max_size=3,
)


@settings(max_examples=examples(400))
@given(
    parts=st.lists(PART, min_size=1, max_size=5),
    before=OTHER,
    after=OTHER,
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_any_chat_is_the_same_without_its_payloads(
    parts: list[dict[str, Any]],
    before: dict[str, Any],
    after: dict[str, Any],
    indent: int | None,
    ascii_only: bool,
) -> None:
    message = {"role": "user", "content": parts}
    body = {
        "metadata": before,
        "messages": [message, message],
        "user": "url",
        "safety_identifier": after,
    }
    encoded = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
    check_same(
        decode_chat,
        encoded,
        lambda each: (list(MessageMappings(each.messages)), each.user),
    )


@settings(max_examples=examples(400))
@given(
    embeds=PAYLOAD | st.lists(PAYLOAD, min_size=1, max_size=4),
    prompt=PAYLOAD.filter(bool)
    | st.lists(PAYLOAD.filter(bool), min_size=1, max_size=3),
    other=OTHER,
)
def test_any_completion_is_the_same_without_its_payloads(
    embeds: Any, prompt: Any, other: dict[str, Any]
) -> None:
    body = {"metadata": other, "prompt_embeds": embeds, "prompt": prompt, "x": other}
    check_same(decode_completion, body, lambda each: (each.prompt, each.prompt_embeds))


@settings(max_examples=examples(200))
@given(data=PAYLOAD, url=PAYLOAD, input_=OTHER, inner=OTHER)
def test_any_messages_of_anthropics_api_are_the_same_without_their_payloads(
    data: str, url: str, input_: dict[str, Any], inner: dict[str, Any]
) -> None:
    base64 = {"type": "base64", "media_type": "image/png", "data": data}
    images = [
        {"type": "image", "source": base64},
        {"type": "image", "source": {"type": "url", "url": url}},
    ]
    call = {"id": "a", "name": "f", "input": {"data": data, "url": inner, **input_}}
    results = [{"type": "tool_result", "tool_use_id": "a", "content": images}]
    body = {
        "max_tokens": 1,
        "messages": [
            {"role": "user", "content": images},
            {"role": "assistant", "content": [{"type": "tool_use", **call}]},
            {"role": "user", "content": results},
        ],
        "metadata": inner,
    }
    decode = MESSAGES_BODY.decode
    check_same(decode, body, lambda each: list(TurnMappings(each.messages, None)))


@given(st.binary(max_size=60) | st.text('{}[]":,\\ab', max_size=60).map(str.encode))
def test_any_bytes_end_in_valid_or_invalid_json_as_before(body: bytes) -> None:
    def is_json(data: bytes) -> bool:
        try:
            msgspec.json.decode(data)
        except (ValueError, RecursionError):
            return False
        return True

    rest, strings = take_out(body, CHAT_PAYLOADS.keys, long_bytes=3)
    assert strings or rest == body
    # Only the bytes that were taken out are no longer checked.
    assert is_json(rest) or not is_json(body)


def check_same(
    decode: Callable[[bytes], Any], body: object, show: Callable[[Any], object]
) -> None:
    """Check that a request shows the same with its short payloads taken out, and without."""
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    shown = []
    for long_bytes in (5, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder, "_LARGE_BYTES", 0)
            patch.setattr(decoder, "take_out", partial(take_out, long_bytes=long_bytes))
            request = decode(encoded)
        try:
            shown.append(show(request))
        except RequestError as error:
            shown.append((error.param, str(error)))
    assert shown[0] == shown[1]
