"""Deterministic simulation: a whole server in virtual time, and histories from a seed.

    python -m trioserve.testing.simulate --seed 7

order      runs trio in virtual time, in an order that a seed decides
sockets    connected sockets in memory
threads    threads in virtual time
lifespan   starts and ends an ASGI app
device     a device whose texts tell their prompts
server     the server over all of these
history    random histories
client     clients that play them
answers    checks of each reply
run        plays a history and checks what is left behind
"""

from .order import run_virtually
from .run import Report, simulate
from .server import (
    SimulatedLimits,
    SimulatedModel,
    SimulatedServer,
    open_simulated_server,
)

__all__ = [
    "Report",
    "SimulatedLimits",
    "SimulatedModel",
    "SimulatedServer",
    "open_simulated_server",
    "run_virtually",
    "simulate",
]
