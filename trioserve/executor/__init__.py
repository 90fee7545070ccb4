"""Carries a plan to the device and its result back.

It knows threads and devices; it does not know sequences, requests or why a plan is what
it is. The door is the Executor protocol; LocalExecutor runs a model in this process,
testing.FakeExecutor runs none.
"""

from .local import LocalExecutor
from .protocol import Executor, StepHandle

__all__ = ["Executor", "LocalExecutor", "StepHandle"]
