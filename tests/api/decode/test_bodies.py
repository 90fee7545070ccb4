"""Any bytes become a request of any endpoint, or an error that names the field."""

from __future__ import annotations

import json
from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest

from trioserve.api.decode.decoder import BodyDecoder
from trioserve.api.responses.messages import naming_fields, to_messages
from trioserve.api.responses.request import ResponseRequest, to_chat
from trioserve.api.shared.generation import to_sampling
from trioserve.api.shared.requests import GenerationRequest
from trioserve.errors import NotSupported, RequestError

from ..decoders import DECODERS, MINIMAL, find_decoder

BODIES = {kind.__name__: find_decoder(kind) for kind in DECODERS}

every_body = pytest.mark.parametrize(("kind", "body"), BODIES.items(), ids=BODIES)


def decode(kind: str, **fields: Any) -> Any:
    return BODIES[kind].decode(json.dumps(MINIMAL[kind] | fields).encode())


MALFORMED = [
    b"",
    b" ",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"text"',
    b"\xff",
    b"\xef\xbb\xbf{}",
    '{"a":"a"}'.encode("utf-16"),
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":"a",}',
    b'{"a":"a"} x',
    b'{"a":' + b"[" * 100_000,
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' + b'{"a":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
]
# In the fields that a request needs.
WRONG_TEXTS = [b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\udc00", b"\\ud800x"]


def test_malformed_bodies_are_refused() -> None:
    for kind in BODIES:
        texts = [
            b",".join(b'"%b":"%b"' % (name.encode(), text) for name in MINIMAL[kind])
            for text in WRONG_TEXTS
        ]
        for content in [*MALFORMED, b"{}", *(b"{%b}" % text for text in texts)]:
            with pytest.raises(RequestError) as caught:
                BODIES[kind].decode(content)
            assert caught.value.status == 400, kind
            assert len(str(caught.value)) < 200, kind


@settings(max_examples=examples(100))
@given(body=st.binary(max_size=200), kind=st.sampled_from(sorted(BODIES)))
def test_random_bytes_are_decoded_or_refused(body: bytes, kind: str) -> None:
    try:
        BODIES[kind].decode(body)
    except RequestError as error:
        assert error.status == 400


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.just({"role": "user", "content": "a"})
    | st.just({"text": "a"}),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["role", "content", "text", "type"]) | st.text(max_size=8),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)
_NAMES = {
    kind: sorted({*body.request_type.__struct_fields__, *body.refused})
    for kind, body in BODIES.items()
}


@settings(max_examples=examples(100))
@given(data=st.data(), kind=st.sampled_from(sorted(BODIES)))
def test_any_value_in_any_field_is_taken_or_refused(
    data: st.DataObject, kind: str
) -> None:
    fields = data.draw(
        st.dictionaries(st.sampled_from(_NAMES[kind]), _JSON, max_size=4)
    )
    try:
        make_sampling(decode(kind, **fields))
    except RequestError as error:
        assert error.status == 400
        name = (error.param or "").partition("[")[0].partition(".")[0]
        assert not name or name in {*fields, *MINIMAL[kind]}


def make_sampling(request: Any) -> None:
    """Go on with a request to a model that generates."""
    if isinstance(request, ResponseRequest):
        messages, sources = to_messages(request.items, request.instructions)
        with naming_fields(sources, 0):
            to_sampling(to_chat(request, messages))
    elif isinstance(request, GenerationRequest):
        to_sampling(request)


@every_body
def test_null_is_the_same_as_nothing(kind: str, body: BodyDecoder[Any]) -> None:
    names = [*body.request_type.__struct_fields__, *body.refused, *body.foreign]
    fields = {name: None for name in names if name not in MINIMAL[kind]}
    assert decode(kind, **fields) == decode(kind)


@every_body
def test_a_refused_field_is_taken_with_a_neutral_value_alone(
    kind: str, body: BodyDecoder[Any]
) -> None:
    for name, neutral in body.refused.items():
        for value in neutral:
            assert decode(kind, **{name: value}) == decode(kind)
        for value in ({"type": "other"}, ["x"], "x" * 99, 7):
            with pytest.raises(NotSupported) as caught:
                decode(kind, **{name: value})
            assert (caught.value.status, caught.value.param) == (400, name)


@every_body
def test_only_unknown_fields_are_listed(kind: str, body: BodyDecoder[Any]) -> None:
    known = dict.fromkeys([*body.refused, *body.ignored, "model"])
    fields = MINIMAL[kind] | known | {"of_the_future": 1}
    assert body.list_unknown_fields(json.dumps(fields).encode()) == ("of_the_future",)
