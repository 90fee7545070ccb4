"""The lines of the log: one record is one line, and quoted texts cannot forge another.

Clients choose names, paths and contents. Parts of them come into the log: in our messages,
in hypercorn's, and in the texts of exceptions.
"""

from __future__ import annotations

import logging
import os
import sys

from ..errors import escape
from .stderr import open_handler

# A record begins with its time, so a line that begins with spaces is not a record.
_INDENT = "    "


class LineFormatter(logging.Formatter):
    """Escapes messages, and indents tracebacks, whose exceptions may quote a client."""

    def format(self, record: logging.LogRecord) -> str:
        first, *rest = super().format(record).split("\n")
        return "\n".join([first, *(_INDENT + escape(line) for line in rest)])

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escape(record.message)
        return super().formatMessage(record)


def set_up_logging(level: int | str, *, origin: str = "", again: bool = False) -> None:
    """Let the root logger write to stderr, unless it has been set up before.

    For our own processes. It also disables the progress bars of Hugging Face's
    libraries, which read the variable when they are imported.

    Libraries log at WARNING at the lowest. At DEBUG, hpack would write the keys of clients, and as
    many lines as a stranger likes.

    Args:
      level: of our own loggers, as in logging.
      origin: a name of the process, or of its model, for each line, if there are several.
      again: replace an earlier set-up.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = open_handler(sys.stderr)
    # The name of a model may have any characters.
    origin = escape(origin).replace("%", "%%") + " " if origin else ""
    handler.setFormatter(
        LineFormatter(f"%(asctime)s %(levelname)s {origin}%(name)s: %(message)s")
    )
    root = logging.getLogger()
    if again or not root.handlers:
        logging.basicConfig(handlers=[handler], force=again)
        ours = logging.getLogger("trioserve")
        ours.setLevel(level)
        root.setLevel(max(logging.WARNING, ours.level))
