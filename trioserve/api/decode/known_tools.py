"""Finds the tools of a request that the client runs itself.

Agents also send tools that their provider runs, such as web_search, or whose form only its
models know, such as custom and local_shell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import NotSupported, quote


def list_known(
    path: str,
    tools: Sequence[dict[str, object]],
    known: Sequence[str | None],
    *,
    ignores_unknown: bool,
) -> Iterator[tuple[str, dict[str, object]]]:
    """List the tools of known types, each with its path.

    Args:
      known: the types of the client's own tools; None stands for no type.
      ignores_unknown: whether other tools are left out, and not refused.

    Raises:
      NotSupported: a tool has another type.
    """
    for index, tool in enumerate(tools):
        if tool.get("type") in known:
            yield f"{path}[{index}]", tool
        elif not ignores_unknown:
            raise NotSupported(
                f"{path}[{index}].type",
                f"{_describe(tool)} is not run here; send functions, or start the server "
                "with --ignore-unknown-tools, which leaves such tools out",
            )


def _describe(tool: Mapping[str, Any]) -> str:
    kind = tool.get("type")
    inner = tool.get(kind) if isinstance(kind, str) else None
    name = tool.get("name") or (isinstance(inner, dict) and inner.get("name"))
    return f"a tool of the type {quote(kind)}" + (f" ({quote(name)})" if name else "")
