"""A thing that outlives its request."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from .process_holdings import ProcessHoldings

# blocks       of the KV cache
# slots        places of sequences, and of texts to be pooled, in the engine
# tokens       of limiters
# threads      that work
# memory       shared between processes, and of bodies
# descriptors  of sockets and files
# tasks        of trio
LeakKind = Literal[
    "blocks", "slots", "tokens", "threads", "memory", "descriptors", "tasks"
]

LEAK_KINDS: Final[tuple[LeakKind, ...]] = get_args(LeakKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A thing that outlives its request, or seems to.

    Args:
      key: identifies the thing from one look to the next.
      request_id: None if it is not known.
      text: describes the thing to people, without contents of requests.
      number: of things; if it rises, more are lost.
    """

    kind: LeakKind
    key: Hashable
    request_id: str | None
    text: str
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAudit:
    """One look at an engine.

    Args:
      leaks: may contain work that is just being added or aborted.
      process: of the core's own process; None if it has none or was not looked at.
    """

    leaks: tuple[Leak, ...]
    process: ProcessHoldings | None
