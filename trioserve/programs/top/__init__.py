"""`trioserve top`: the running requests of a server, in a terminal.

It asks a server over HTTP, and knows nothing of engines. The door is run_top.

config     the options
client     asks the server, and explains why it cannot be asked
table      rows, columns and orders, without a terminal
choices    the selection and the questions of the user, without a terminal
poller     asks in a thread, so that keys never wait for the server
screen     draws with curses, and reads keys
command    one table, or the live screen
"""

from .command import run_top
from .config import TopConfig

__all__ = ["TopConfig", "run_top"]
