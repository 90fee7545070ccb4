"""`trioserve chat`: a conversation in the terminal, or one answer in a pipe.

The answers come from an engine that this process opens, or from a server over HTTP; the rest
of the room does not know which. Without a terminal it needs no package besides the
server's. The doors are read_chat_config and run_chat.

config        the options, and which of them exclude each other
answers       sources of answers, and the pieces of an answer
embedded      answers of an engine that is opened here
remote        answers of a server that speaks OpenAI's API; `events` reads its streams, and
              `proxy` finds the way to it
conversation  the messages; `images` reads pictures, `saving` and `restoring` whole files
pipe          one question from a pipe, one answer to a pipe
command       the way in: a pipe or a terminal
"""

from .command import run_chat
from .config import ChatConfig, Source, read_chat_config

__all__ = ["ChatConfig", "Source", "read_chat_config", "run_chat"]
