"""What the device of a fake server was told."""

from __future__ import annotations

from typing import Any

from trioserve.frontend import TextEngine
from trioserve.testing.server import FakeServer


def list_starts(server: FakeServer) -> list[Any]:
    """Return the sequences that began, in their order."""
    return [start for plan in server.device.plans for start in plan.starts]


def read_prompt(server: FakeServer) -> str:
    """Return the text of the last prompt that began."""
    served = server.state.engine
    assert isinstance(served, TextEngine)
    token_bytes = served.renderer.token_bytes
    ids = list_starts(server)[-1].prompt_token_ids
    return b"".join(map(token_bytes, ids)).decode()


def list_grammars(server: FakeServer) -> list[str | None]:
    """Return the grammar of each sequence that began."""
    grammars = [start.sampling.grammar for start in list_starts(server)]
    return [grammar and grammar.text for grammar in grammars]
