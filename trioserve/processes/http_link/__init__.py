"""Several HTTP processes of one server. They exchange news by way of their parent.

messages    between an HTTP process and its parent
hub         the parent's side: it passes on states, questions and answers, and counts places
places      the requests of each key that run at once, over all HTTP processes
link        the side of an HTTP process
silence     the watch over an HTTP process that may have stopped
died        the error of one that is not replaced

It does not know HTTP, keys or engines: states, questions and answers are bytes here. The
doors are Hub and ParentLink; startup/ opens the processes.
"""

from .died import HttpProcessDied
from .hub import Hub
from .link import ParentLink
from .silence import SilenceWatch

__all__ = ["ParentLink", "HttpProcessDied", "Hub", "SilenceWatch"]
