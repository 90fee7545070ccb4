"""Carries a plan to the device and its result back.

It knows threads and devices; it does not know sequences, requests or why a plan is what
it is. The door is the Executor protocol; LocalExecutor runs a model in this process,
PipelineExecutor one that is spread over others, testing.FakeExecutor runs none.
"""

from .local import LocalExecutor, make_local_executor
from .pipeline import PipelineExecutor, StageDied, StagePeer
from .protocol import Executor, StepHandle

__all__ = [
    "Executor",
    "LocalExecutor",
    "PipelineExecutor",
    "StageDied",
    "StagePeer",
    "StepHandle",
    "make_local_executor",
]
