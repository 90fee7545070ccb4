"""Plays a pipeline in virtual time: the real scheduler and loop, and stages that only wait.

Minutes of a load on eight stages take seconds, without a model and without torch. The
simulation models the duration of a step, but not its computation.

The doors are `simulate` for a whole load, `open_simulated_engine` for programs and tests
with requests of their own, and PipelineSimulator for programs with an engine of their own.
"""

from .config import SimulateConfig
from .load import SimulatedRequest, list_requests, read_trace
from .pipeline import PipelineSimulator, PipelineTimes, TransfersNotMatched
from .record import Bar, Message, StepKind
from .report import Report, RequestRecord
from .simulate import open_simulated_engine, play, report_simulation, simulate

__all__ = [
    "Bar",
    "TransfersNotMatched",
    "Message",
    "PipelineSimulator",
    "PipelineTimes",
    "Report",
    "RequestRecord",
    "SimulateConfig",
    "SimulatedRequest",
    "StepKind",
    "list_requests",
    "open_simulated_engine",
    "play",
    "read_trace",
    "report_simulation",
    "simulate",
]
