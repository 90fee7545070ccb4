"""The door for hypercorn: an ASGI app whose lifespan holds the engine.

    hypercorn -w 0 -k trio 'trioserve.asgi:create_app("MODEL", max_num_seqs=32)'

hypercorn owns the sockets and the process. docs/operations.rst lists the precautions that
this needs and `trioserve serve` does not.
"""

from .startup.asgi_app import create_app

__all__ = ["create_app"]
