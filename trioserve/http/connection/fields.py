"""HPACK with bounds on the work of a header block and on the size of tables."""

from __future__ import annotations

from collections.abc import Iterable
import re

from hpack import Decoder, Encoder, HeaderTuple, HPACKDecodingError
from hpack.exceptions import OversizedHeaderListError

# Node's limit (maxHeaderListPairs). hypercorn's limit of 64 KiB alone would allow 2,000
# fields, because an empty field counts as 32 bytes. Decoding them takes 6 ms.
MAX_NUM_FIELDS = 128

# The default of RFC 9113, 6.5.2. hpack searches the whole table for each field.
MAX_TABLE_SIZE = 4096


class BoundedDecoder(Decoder):
    """A decoder that refuses header blocks with too many fields."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Decode a header block; see hpack.

        Raises:
          OversizedHeaderListError: there are too many fields.
        """
        # RFC 7541, 4.2 allows two updates at most. They do not count as fields.
        if _MANY_SIZE_UPDATES.match(data):
            raise HPACKDecodingError("too many updates of the table's size")
        fields = list(super().decode(data, raw))
        if len(fields) > MAX_NUM_FIELDS:
            raise OversizedHeaderListError("too many fields")
        return fields


_MANY_SIZE_UPDATES = re.compile(
    rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}", re.DOTALL
)


class BoundedEncoder(Encoder):
    """An encoder whose table is as large as the peer allows, up to the default."""

    @property
    def header_table_size(self) -> int:
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        size = min(value, MAX_TABLE_SIZE)
        Encoder.header_table_size.fset(self, size)  # type: ignore[attr-defined]
