"""Several front processes of one server. They exchange news by way of their parent.

messages    between a front process and its parent
hub         the parent's side: it passes on states, questions and answers, and counts places
places      the requests of each key that run at once, over all front processes
link        the side of a front process
silence     the watch over a front process that may have stopped
died        the error of one that is not replaced

It does not know HTTP, keys or engines: states, questions and answers are bytes here. The
doors are Hub and FrontLink; startup/ opens the processes.
"""

from .died import FrontProcessDied
from .hub import Hub
from .link import FrontLink
from .silence import SilenceWatch

__all__ = ["FrontLink", "FrontProcessDied", "Hub", "SilenceWatch"]
