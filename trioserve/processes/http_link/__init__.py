"""Several HTTP processes of one server. They exchange news by way of their parent.

messages    between an HTTP process and its parent
hub         the parent's side: it passes on states, questions and answers, and counts places
link        the side of an HTTP process

It does not know HTTP, keys or engines: states, questions and answers are bytes here. The
doors are Hub and ParentLink; startup/ opens the processes.
"""

from .hub import HttpProcessDied, Hub
from .link import ParentLink

__all__ = ["ParentLink", "HttpProcessDied", "Hub"]
