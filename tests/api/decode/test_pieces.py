"""No field of a body makes one call of the JSON decoder long.

Such a call holds the GIL. The tests count what the calls are given, so they need no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import json
from types import SimpleNamespace
from typing import Any, Final, get_type_hints

from examples import examples
from hypothesis import given, settings, strategies as st
import msgspec
import pytest

from trioserve.api.anthropic.turns import Turns
from trioserve.api.chat.request import ChatRequest
from trioserve.api.decode import values
from trioserve.api.decode.body import run_decoding
from trioserve.api.decode.counting import MAX_CONTAINERS, MAX_FIELDS, check_size
from trioserve.api.decode.shapes import find_long_fields, find_shape
from trioserve.api.decode.values import PIECE_BYTES, decode_field, decode_pieces
from trioserve.api.responses.request import ResponseRequest
from trioserve.api.shared.messages import MAX_MESSAGES, MAX_PARTS, Messages
from trioserve.api.shared.tools import MAX_TOOLS_BYTES
from trioserve.errors import InvalidParameter, RequestError

from ..decoders import DECODERS, decode_body, find_decoder

REQUESTS: Final = sorted(DECODERS, key=lambda request: request.__name__)

# Values of more than PIECE_BYTES with too many lists, objects or fields.
COSTLY: Final = (
    b"[%b0]" % (b"[]," * 22_000),
    b"[%b0]" % (b"{}," * 22_000),
    b'{%b"a":0}' % (b'"":0,' * 13_200),
)
SMALL: Final = b'[{"type":"text","text":"a"}]'


def list_places(kind: Any, depth: int = 6) -> Iterator[bytes]:
    """Yield JSON with %b at each place where a type may have lists, mappings or fields."""
    yield b"%b"
    shape = find_shape(kind)
    if shape.item is not None and depth:
        for place in list_places(shape.item, depth - 1):
            yield b"[%b]" % place
    if shape.struct is not None and depth:
        hints = get_type_hints(shape.struct, include_extras=True)
        for name in find_long_fields(shape.struct):
            for place in list_places(hints[name], depth - 1):
                yield b'{"%b":%b}' % (name.encode(), place)


def list_bodies(
    request: type[msgspec.Struct], seen: set[tuple[str, str]]
) -> Iterator[bytes]:
    """Yield bodies with %b in each field, except fields of other requests."""
    yield b"%b"
    hints = get_type_hints(request, include_extras=True)
    names = {"unknown": Any, **{n: hints[n] for n in request.__struct_fields__}}
    names |= dict.fromkeys(find_decoder(request).refused, Any)
    required = {
        f.encode_name: SMALL for f in msgspec.structs.fields(request) if f.required
    }
    for name, kind in names.items():
        if (name, str(kind)) in seen:
            continue
        seen.add((name, str(kind)))
        others = b"".join(
            b',"%b":%b' % (other.encode(), text)
            for other, text in required.items()
            if other != name
        )
        for place in list_places(kind):
            yield b'{"%b":%b%b}' % (name.encode(), place, others)


def check_call(raw: msgspec.Raw | bytes, kind: Any) -> None:
    """Assert that a call of the decoder makes few objects."""
    num_bytes = len(memoryview(raw))
    if kind is not None and find_shape(kind).is_long:
        assert num_bytes <= MAX_TOOLS_BYTES
        if num_bytes > PIECE_BYTES:
            check_size("", raw, max_containers=MAX_CONTAINERS // 4)
            return
    check_size("", raw)


def test_no_call_of_the_decoder_makes_many_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = values.find_decoder

    def find_checked(kind: Any) -> Any:
        def decode(raw: msgspec.Raw | bytes) -> Any:
            # The lists of split_list have a bound, and their items stay bytes.
            if getattr(kind, "__name__", "") != "Items":
                check_call(raw, kind)
            return original(kind).decode(raw)

        return SimpleNamespace(decode=decode)

    monkeypatch.setattr(values, "find_decoder", find_checked)
    seen: set[tuple[str, str]] = set()
    for request_type in REQUESTS:
        for body in list_bodies(request_type, seen):
            for costly in COSTLY:
                with pytest.raises(RequestError):
                    decode_body(request_type, body % costly)
                    # A list that is not too long, or an unknown field.
                    raise InvalidParameter(None, "taken")
    assert len(seen) > 100


def test_the_first_pass_leaves_all_lists_and_mappings_as_bytes() -> None:
    assert len(list(filter(find_long_fields, REQUESTS))) > len(REQUESTS) // 2
    for request_type in REQUESTS:
        first = find_decoder(request_type)._decoder.type
        assert not find_long_fields(first), request_type


def test_every_list_that_is_decoded_in_pieces_has_a_bound() -> None:
    for request_type in REQUESTS:
        decoder = find_decoder(request_type)
        for name, kind in find_long_fields(request_type).items():
            if name not in decoder.own_fields:
                assert not list(list_unbounded(kind, name)), request_type


def list_unbounded(kind: Any, path: str) -> Iterator[str]:
    shape = find_shape(kind)
    if shape.item is not None:
        if shape.max_items is None:
            yield path
        yield from list_unbounded(shape.item, f"{path}[]")
    if shape.struct is not None:
        for name, inner in find_long_fields(shape.struct).items():
            yield from list_unbounded(inner, f"{path}.{name}")


@pytest.mark.parametrize(
    ("request_type", "fields", "message"),
    [
        (
            ChatRequest,
            {"logit_bias": {str(i): 1 for i in range(9000)}},
            "The body has more than 4096 fields in one object.",
        ),
        (
            ResponseRequest,
            {"metadata": {str(i): "" for i in range(9000)}, "input": "a"},
            "The body has more than 4096 fields in one object.",
        ),
        (
            ResponseRequest,
            {"metadata": {str(i): "a" * 500 for i in range(200)}, "input": "a"},
            "metadata: must have a length of at most 16",
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "text"}] * 66_000}]},
            "The body has more than 65536 objects and lists.",
        ),
        (
            ChatRequest,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text"}] * (MAX_PARTS + 1)}
                ]
            },
            "messages[0].content: must have a length of at most 16384",
        ),
        (
            ChatRequest,
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f"}}] * (MAX_PARTS + 1),
                    },
                ]
            },
            "messages[1].tool_calls: must have a length of at most 16384",
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user"}] * (MAX_MESSAGES + 1)},
            "messages: must have a length of at most 16384",
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": "a" * 70_000}, {"role": 7}]},
            "messages[1].role: expected str, got int",
        ),
    ],
)
def test_too_much_of_one_field_is_refused_with_its_bound(
    request_type: type[msgspec.Struct], fields: dict[str, Any], message: str
) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], **fields})
    with pytest.raises(InvalidParameter) as caught:
        decode_body(request_type, body.encode())
    assert str(caught.value) == message


TEXTS: Final = st.text('a"\\{}[]:,é😀', max_size=20)
VALUES: Final = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def count_containers(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count_containers, value.values()))
    return 1 + sum(map(count_containers, value)) if isinstance(value, list) else 0


def count_fields(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)):
        return 0
    own = len(value) if isinstance(value, dict) else 0
    return max([own, *map(count_fields, inner)])


@settings(max_examples=examples(60))
@given(value=VALUES, ascii_only=st.booleans(), piece_bytes=st.integers(1, 9))
def test_objects_lists_and_fields_are_counted_as_they_are_decoded(
    value: Any, ascii_only: bool, piece_bytes: int
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trioserve.api.decode.counting._PIECE_BYTES", piece_bytes)
        num_containers, num_fields = count_containers(value), count_fields(value)
        assert not is_refused(body, max_containers=num_containers)
        assert is_refused(body, max_containers=num_containers - 1) or not num_containers
        # With so low a bound, objects of few fields are not few.
        patch.setattr("trioserve.api.decode.counting._FEW_FIELDS", (b"[]", b"{}"))
        patch.setattr("trioserve.api.decode.counting.MAX_FIELDS", num_fields)
        assert not is_refused(body)
        patch.setattr("trioserve.api.decode.counting.MAX_FIELDS", num_fields - 1)
        assert is_refused(body) or not num_fields


def is_refused(body: bytes, **bounds: int) -> bool:
    try:
        check_size("x", body, few_bytes=0, **bounds)
    except InvalidParameter:
        return True
    return False


CONTENTS: Final = (
    TEXTS
    | st.none()
    | st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "image_url", "image", "tool_use"])},
            optional={"text": TEXTS | st.integers(), "input": VALUES, "x": VALUES},
        ),
        max_size=3,
    )
)
CHATS: Final = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", 7]), "content": CONTENTS},
        optional={"name": TEXTS, "tool_calls": VALUES, "x": VALUES},
    )
    | VALUES,
    max_size=4,
)


@settings(max_examples=examples(60))
@given(chat=CHATS | VALUES)
@pytest.mark.parametrize("kind", [Messages, Turns])
def test_pieces_are_decoded_as_the_whole(kind: Any, chat: Any) -> None:
    body = msgspec.Raw(json.dumps(chat).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trioserve.api.decode.values.PIECE_BYTES", 2)
        in_pieces = attempt(decode_pieces, body, kind)
    assert in_pieces == attempt(decode_field, body, kind)


def attempt(decode: Any, body: msgspec.Raw, kind: Any) -> Any:
    try:
        return decode("messages", body, kind)
    except InvalidParameter:
        # If several values are wrong, another one may be found first.
        return "refused"


def test_the_bounds_of_a_body_leave_room_for_the_largest_conversation() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    body = json.dumps({"messages": [message] * MAX_MESSAGES}).encode()
    assert len(decode_body(ChatRequest, body).messages) == MAX_MESSAGES
    assert MAX_FIELDS >= 1024


@pytest.mark.parametrize(
    ("chunks", "is_short"),
    [
        ([b"a" * 60_000], True),
        ([b"{}" * 200, b"[]" * 200], True),
        ([b"{}" * 300, b"[]" * 300], False),
        ([b'"n":1,' * 10_000], False),
        ([b"a" * 60_000] * 2, False),
    ],
)
async def test_the_event_loop_decodes_short_bodies_of_few_values_alone(
    chunks: list[bytes | bytearray], is_short: bool
) -> None:
    num_runs = 0

    async def run(work: Callable[[], int], *, expected_seconds: float) -> int:
        nonlocal num_runs
        num_runs += 1
        return work()

    workers: Any = SimpleNamespace(run=run)
    assert await run_decoding(workers, lambda: 7, chunks) == 7
    assert num_runs == (not is_short)
