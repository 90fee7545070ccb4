"""Settings of the interpreter; tested in a process, because they are global."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
import sys
import trio
from trioserve.processes.interpreter import prepare_interpreter, settle_interpreter

class Loaded:
    pass

prepare_interpreter()
assert not gc.isenabled()
assert sys.getswitchinterval() < 0.001
kept, garbage = Loaded(), Loaded()
garbage.itself = garbage
del garbage
trio.run(settle_interpreter)
assert gc.isenabled()
assert not any(isinstance(each, Loaded) for each in gc.get_objects())
gc.unfreeze()
assert [each for each in gc.get_objects() if isinstance(each, Loaded)] == [kept]
"""


def test_loaded_objects_are_collected_once_and_then_frozen() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
