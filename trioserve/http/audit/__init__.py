"""The leak audit: it finds things that outlive their request, also in production.

audit        looks each minute, and reports things found twice in a row; also finds tasks,
             tokens of limiters and abandoned threads, by their owners
process      descriptors and shared memory of a process, which have no owners

Blocks and slots are the engine's (engine/leaks.py). Things that live longer by design are not
leaks: the prefix cache, idle connections, stored responses, and responses in the background,
which are requests of their own here.
"""

from .audit import LeakAudit

__all__ = ["LeakAudit"]
