"""llama.cpp's own HTTP server, as the wheel xllamacpp has it; a process of its own.

    python llama_server.py FILE.gguf PORT SLOTS TOKENS_OF_A_SLOT

It imports nothing of this project, because it runs in an environment of its own.
"""

from __future__ import annotations

import signal
import sys

# No types: the checked environment does not have it.
import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    path, port, num_slots, slot_tokens = sys.argv[1:]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.port = int(port)
    parameters.n_parallel = int(num_slots)
    parameters.n_ctx = int(num_slots) * int(slot_tokens)
    # The server lives as long as this object.
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
