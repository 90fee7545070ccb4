"""The start of `trioserve serve`."""

from __future__ import annotations

import subprocess
import sys

# Prints the modules of HTTP that are imported when the first process of Python is started.
FIRST_PROCESS = """
import os, subprocess, sys

class FirstProcess(subprocess.Popen):
    def __init__(self, command, **options):
        # trio calls a program of the system.
        if command[0] != sys.executable:
            super().__init__(command, **options)
            return
        late = {"hypercorn", "jinja2", "quart", "tokenizers", "numpy", "trioserve.frontend"}
        print(command[3], *command[6:], late & {*sys.modules} or "alone", flush=True)
        os._exit(0)

subprocess.Popen = FirstProcess
from trioserve.__main__ import main
main(["serve", "--port", "0", *sys.argv[1:]])
"""


def start_first(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PROCESS, *options], capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_engine_process_starts_before_http_is_imported() -> None:
    """Both imports together take as long as the longer one, where there are two cores."""
    engine = "trioserve.startup.engine_process"
    assert start_first() == f"{engine} torch alone"


def test_the_engine_process_of_a_pipeline_imports_no_torch() -> None:
    engine = "trioserve.startup.engine_process"
    assert start_first("--pipeline-parallel-size", "2") == f"{engine} alone"
