"""`trioserve run-batch`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from ...errors import InvalidConfig
from ..command import Command, importing, name_model

if TYPE_CHECKING:
    from ...config.flags import CommandLine

_DESCRIPTION = """\
Answer a file of requests in the format of OpenAI's batches: a line of JSON with
custom_id, method, url and body for each. For example:

  trioserve run-batch -i requests.jsonl -o answers.jsonl Qwen/Qwen3-0.6B
  trioserve run-batch -i requests.jsonl -o answers.jsonl --url http://127.0.0.1:8000

With --url or --uds the requests go to a running server, and the options of the engine
have no use. Otherwise the command loads MODEL, and opens no port. If it is
interrupted, the same command goes on. Exit codes: 0 if all lines have an answer, 1 if
some lines failed, 2 for a mistake, 3 if the batch could not be finished.
"""

# A batch waits for its turns, so no request is refused because others wait.
_MANY: Final = 2**20


def _run(line: CommandLine) -> int:
    from ...config import build_config
    from ...startup.log_lines import set_up_logging
    from ..batch.command import run_batch
    from ..batch.config import BatchConfig

    # Before the words are read as a model: people write the two files without their flags.
    for name in ("input_file", "output_file"):
        if name not in line.values:
            raise InvalidConfig(name, "is missing: run-batch -i FILE -o FILE")
    values: dict[str, Any] = line.values | name_model(line)
    is_remote = "url" in values or "uds" in values
    if is_remote:
        _refuse_engine_options(values)
    else:
        _refuse_remote_options(values)
        values.setdefault("max_queued_requests", _MANY)
    config = build_config(BatchConfig, values)
    set_up_logging(config.files.log_level.upper())
    return run_batch(config, is_remote=is_remote)


def _refuse_engine_options(values: dict[str, Any]) -> None:
    from ...config import EngineConfig, ProcessConfig, list_options

    for config in (EngineConfig, ProcessConfig):
        for option in list_options(config):
            if option.name in values:
                raise InvalidConfig(
                    option.name,
                    "is for an engine of this command, and --url asks a server; the "
                    "lines of the file name its model",
                )


def _refuse_remote_options(values: dict[str, Any]) -> None:
    from ...config import RemoteConfig, list_options

    for option in list_options(RemoteConfig):
        if option.name in values:
            raise InvalidConfig(option.name, "is for a server: name it by --url")


RUN_BATCH: Final = Command(
    name="run-batch",
    synopsis="-i FILE -o FILE [MODEL | --url URL] [options]",
    usage="-i FILE -o FILE",
    summary="answer a file of requests",
    description=_DESCRIPTION,
    load_config=importing("..batch.config", "BatchConfig"),
    run=_run,
    # name_model names all words if there are several.
    max_words=sys.maxsize,
    short_flags={"-i": "--input-file", "-o": "--output-file"},
)
