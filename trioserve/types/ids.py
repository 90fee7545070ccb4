"""Type names of ids."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
SequenceId = NewType("SequenceId", int)
BlockId = NewType("BlockId", int)
