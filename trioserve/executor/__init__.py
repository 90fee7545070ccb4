"""Carries a plan to the device and its result back.

This room knows threads and devices. It does not know sequences, requests or the reasons
of a plan. Its door is the Executor protocol. LocalExecutor runs a model in this process,
pipeline.PipelineExecutor runs a model whose layers are in other processes, and
testing.FakeExecutor runs no model. RestingExecutor gives the memory of the others back while
nobody needs the model.
"""

from .local import LocalExecutor, make_local_executor
from .protocol import Executor, StepHandle
from .resting import RestingExecutor

__all__ = [
    "Executor",
    "LocalExecutor",
    "RestingExecutor",
    "StepHandle",
    "make_local_executor",
]
