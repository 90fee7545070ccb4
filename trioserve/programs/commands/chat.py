"""`trioserve chat`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from ..command import Command, importing, name_model

if TYPE_CHECKING:
    from ...config.flags import CommandLine

_DESCRIPTION = """\
Talk to MODEL, which is loaded here, or to the server at URL: any server that
speaks OpenAI's API. For example:

  trioserve chat
  trioserve chat Qwen/Qwen3-0.6B --reasoning-parser qwen3
  trioserve chat --url http://127.0.0.1:8000
  trioserve chat -p "What is the capital of France?"
  git diff | trioserve chat -p "Write a commit message."

In a terminal it is a conversation; /help explains its commands. It needs
`pip install 'trioserve[chat]'`. With a question, or in a pipe, it prints the
answer alone.
"""


def _run(line: CommandLine) -> int:
    from ..chat import read_chat_config, run_chat

    values = line.values | name_model(line)
    return run_chat(*read_chat_config(values, has_word=bool(line.words)))


CHAT: Final = Command(
    name="chat",
    synopsis="[MODEL | --url URL] [-p QUESTION] [options]",
    usage="[MODEL] [options]",
    summary="talk to a model in the terminal or in a pipe",
    description=_DESCRIPTION,
    load_config=importing("..chat.config", "ChatConfig"),
    run=_run,
    # name_model names all words if there are several.
    max_words=sys.maxsize,
    short_flags={"-p": "--prompt"},
)
