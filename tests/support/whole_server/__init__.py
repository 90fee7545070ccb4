"""Deterministic simulation: a whole server in virtual time, and histories from a seed.

    python -m whole_server --seed 7

order       runs trio in virtual time, in an order that a seed decides
sockets     connected sockets in memory
threads     threads in virtual time
lifespan    starts and ends an ASGI app
device      a device whose texts tell their prompts; guided are those with a grammar
model       values that runs share, and the sizes of a server
engines     engines that generate and that embed
server      the server over all of these

history     random histories, of plans (plans), drawn with dice (dice): text_requests with
            forms, pooling_requests, deliveries (how they are sent), keys
client      clients that play them over http1 and http2 (exchange), with their replies

checks      all checks of the replies: answers, vectors and key_checks; causes of errors,
            and reading
run         plays a history, and checks its answers and its remains
play        plays many, in several processes
"""

from .model import SimulatedLimits, SimulatedModel
from .order import run_virtually
from .run import Report, simulate
from .server import SimulatedServer, open_simulated_server

__all__ = [
    "Report",
    "SimulatedLimits",
    "SimulatedModel",
    "SimulatedServer",
    "open_simulated_server",
    "run_virtually",
    "simulate",
]
