"""`python -m trioserve.testing.supervisor_process OPTIONS`: a server with a fake engine.

It has several real HTTP processes. OPTIONS is a JSON object of the options of `trioserve
serve`, and `model` is a folder with a tokenizer, for example from make_folder.
"""

from __future__ import annotations

import json
from pathlib import Path
import socket
import struct
import sys
from typing import ClassVar

import trio

from ..config import ServeConfig, build_config
from ..startup.address import open_address
from ..startup.log_lines import set_up_logging
from ..startup.server import Server, Service
from ..startup.supervisor import Supervisor
from .tokenizer import tiny_tokenizer


def make_folder(folder: Path) -> Path:
    """Make a folder that looks like a model, but has no tensors."""
    tiny_tokenizer(folder)
    described = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(described))
    # The length of the header, and the header.
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    return folder


class _FakeSupervisor(Supervisor):
    engine_module: ClassVar[str] = "trioserve.testing.fake_engine_process"


class _FakeServer(Server):
    def make_service(self, config: ServeConfig, sock: socket.socket) -> Service:
        return _FakeSupervisor(config, sock)


def main() -> int:
    config = build_config(ServeConfig, json.loads(sys.argv[1]))
    set_up_logging(config.bind.log_level.upper())
    with open_address(config.bind) as sock:
        return trio.run(_FakeServer(config, sock).run)


if __name__ == "__main__":
    sys.exit(main())
