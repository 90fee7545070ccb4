"""Carries a plan to the device and its result back.

It knows threads and devices; it does not know sequences, requests or why a plan is what
it is. The door is the Executor protocol. LocalExecutor runs a model in this process,
pipeline.PipelineExecutor runs a model whose layers are in other processes, and
testing.FakeExecutor runs none.
"""

from .local import LocalExecutor, make_local_executor
from .protocol import Executor, StepHandle

__all__ = [
    "Executor",
    "LocalExecutor",
    "StepHandle",
    "make_local_executor",
]
