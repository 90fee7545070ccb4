"""A server of a sleeping device by several HTTP processes.

`python -m kit.engines.http_processes DEVICE NUMBER FOLDER`. All but the engine's device is as in
`trioserve serve --api-processes NUMBER FOLDER`.
"""

from __future__ import annotations

import os
import sys
from typing import ClassVar

from kit.engines.device import MOST_SEQUENCES
from kit.engines.engine_process import DEVICE_VARIABLE, SHARED_VARIABLE
import trio

from trioserve.config import ServeConfig, build_config
from trioserve.startup.address import open_address
from trioserve.startup.log_lines import set_up_logging
from trioserve.startup.server import Server, Service
from trioserve.startup.supervisor import Supervisor


class _Supervisor(Supervisor):
    engine_module: ClassVar[str] = "kit.engines.engine_process"


class _Server(Server):
    def make_service(self, *arguments: object) -> Service:
        return _Supervisor(*arguments)  # type: ignore[arg-type]


def main() -> int:
    device, number, folder = sys.argv[1:]
    os.environ[DEVICE_VARIABLE] = device
    os.environ[SHARED_VARIABLE] = "1"
    options = {
        **{"model": folder, "port": 0},
        **{"api_processes": int(number), "max_num_seqs": MOST_SEQUENCES},
        **{"response_max_age": 0, "max_background_responses": 0},
    }
    config = build_config(ServeConfig, options)
    set_up_logging("INFO")
    with open_address(config.bind) as sock:
        return trio.run(_Server(config, sock).run)


if __name__ == "__main__":
    sys.exit(main())
