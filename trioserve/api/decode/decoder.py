"""Decodes the JSON of one endpoint's bodies into its request struct.

A call of the JSON decoder holds the GIL, so a long call pauses every stream.
msgspec takes less than half as long as pydantic (bench/schema.py). Fields that may be
megabytes long stay bytes in that call, and values.py decodes them in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from ...errors import InvalidParameter
from .counting import check_size
from .errors import Neutral, Refused, explain
from .field_names import FieldNames, find_inside
from .fields import ModelRequest
from .payloads import Payloads, Strings, take_out
from .shapes import find_long_fields
from .values import decode_pieces, make_shell

# Smaller bodies are decoded within a quarter of a millisecond.
_LARGE_BYTES: Final = 2**20

# More token ids than any body has.
UNBOUNDED: Final = 2**62

_MAX_UNKNOWN_FIELDS: Final = 16
_MAX_UNKNOWN_CHARACTERS: Final = 64

RequestT = TypeVar("RequestT", bound=ModelRequest)

# Decodes a field, given its name, its bytes and a number of token ids that is too large.
DecodeField = Callable[[str, msgspec.Raw, int], object]


class BodyDecoder(Generic[RequestT]):
    """Decodes the bodies of one endpoint.

    The first pass looks at the names of the fields (field_names.py). The second one decodes
    into a struct in which each field that may hold lists or mappings stays bytes: their sizes
    are checked before they are decoded.

    Args:
      lazy: fields with decoders of their own. All others that may be long are decoded in
        pieces.
      refused: fields that are not implemented, with their neutral values.
      advice: the fields that take their places, for some of them.
      foreign: fields that other servers have, with advice and their neutral values. A field of
        an inner object is called by its path.
      ignored: names of fields that change nothing.
      bounds_ids: whether token ids are refused if there are more than the model takes.
      payloads: images and tensors, which are not decoded; None for bodies without them.
    """

    def __init__(
        self,
        request_type: type[RequestT],
        lazy: Mapping[str, DecodeField] = {},
        *,
        refused: Mapping[str, Neutral] = {},
        advice: Mapping[str, str] = {},
        foreign: Mapping[str, Refused] = {},
        ignored: frozenset[str] = frozenset(),
        bounds_ids: bool = True,
        payloads: Payloads | None = None,
    ) -> None:
        self.request_type = request_type
        self.refused = refused
        self.foreign = {k: row for k, row in foreign.items() if "." not in k}
        self.ignored = ignored
        advised = {k: (advice.get(k, ""), neutral) for k, neutral in refused.items()}
        self._names = FieldNames(
            request_type.__struct_encode_fields__,
            ignored=ignored,
            refused={**self.foreign, **advised},
            inside=find_inside(request_type, foreign),
        )
        self.own_fields = frozenset(lazy)
        self._lazy: dict[str, DecodeField] = {
            **{
                name: partial(_decode_as, kind)
                for name, kind in find_long_fields(request_type).items()
            },
            **lazy,
        }
        self._bounds_ids = bounds_ids
        self._payloads = payloads
        self._decoder: msgspec.json.Decoder[RequestT] = msgspec.json.Decoder(
            make_shell(request_type, tuple(self._lazy))
        )

    def decode(
        self,
        body: bytes,
        max_model_len: int = UNBOUNDED,
        *,
        ignores_unknown_tools: bool = False,
    ) -> RequestT:
        """Decode a body.

        Args:
          max_model_len: a prompt with this many token ids is refused before its ids are
            decoded.
          ignores_unknown_tools: tools that the client does not run itself are left out.

        Raises:
          InvalidParameter: the body is not JSON, or a field has the wrong type or length.
          NotSupported: a field needs a feature that this server does not have.
        """
        if not body:
            raise InvalidParameter(None, "The body is empty.")
        strings: Strings = {}
        payloads = self._payloads if len(body) > _LARGE_BYTES else None
        if payloads is not None:
            body, strings = take_out(body, payloads.keys)
        check_size(None, body)
        self._names.check(body)
        try:
            parsed = self._decoder.decode(body)
        # UnicodeDecodeError is a ValueError, but not a DecodeError.
        except (ValueError, RecursionError) as error:
            raise explain(error, self.request_type) from None
        fields = self._decode_lazy_fields(
            parsed, max_model_len, ignores_unknown_tools=ignores_unknown_tools
        )
        if payloads is not None and strings:
            payloads.put_back(fields, strings)
        return self.request_type(**fields)

    def list_unknown_fields(self, body: bytes) -> tuple[str, ...]:
        """Return the names of the top-level fields that the server does not know.

        This parses the body once more, so it is for the debug log alone.

        Returns:
          at most 16 names, each cut to 64 characters.
        """
        try:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        # The names of unknown fields were not decoded before, so they may not be UTF-8.
        except ValueError:
            return ()
        known = {
            *self.request_type.__struct_fields__,
            *self.refused,
            *self.foreign,
            *self.ignored,
        }
        unknown = [name for name in fields if name not in known]
        return tuple(
            name[:_MAX_UNKNOWN_CHARACTERS] for name in unknown[:_MAX_UNKNOWN_FIELDS]
        )

    def _decode_lazy_fields(
        self, parsed: RequestT, max_model_len: int, *, ignores_unknown_tools: bool
    ) -> dict[str, Any]:
        """Return all fields of the request; a lazy field that was not sent is None."""
        fields: dict[str, Any] = msgspec.structs.asdict(parsed)
        # A prompt that will be truncated may be longer than the model takes.
        is_truncated = fields.get("truncate_prompt_tokens") is not None
        is_bounded = self._bounds_ids and not is_truncated
        max_tokens = max_model_len if is_bounded else UNBOUNDED
        for name, decode in self._lazy.items():
            if ignores_unknown_tools and name == "tools":
                # Only decoders of tools have this option.
                decode = partial(cast(Any, decode), ignores_unknown=True)
            raw = fields[name]
            fields[name] = decode(name, raw, max_tokens) if raw else None
        return fields


def _decode_as(kind: Any, name: str, raw: msgspec.Raw, max_tokens: int) -> object:
    return decode_pieces(name, raw, kind)
