"""The requests of a simulation and their arrival times, from a trace or at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import csv
from dataclasses import dataclass
import math
from pathlib import Path
import random

import msgspec

from ...errors import InvalidConfig
from .config import SimulateConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """The arrival and the sizes of a request.

    Args:
      arrival_seconds: after the start.
      prompt_tokens, output_tokens: at least one of each.
    """

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int


def list_requests(config: SimulateConfig) -> list[SimulatedRequest]:
    """Return the requests by arrival; ties keep the order of the file.

    Raises:
      InvalidConfig: the trace is wrong, or a request does not fit the KV blocks.
    """
    if config.trace is not None:
        return read_trace(Path(config.trace), config.max_model_len)
    num_tokens = config.prompt_tokens[1] + config.output_tokens[1]
    if num_tokens > config.max_model_len:
        reason = f"{num_tokens} tokens do not fit into {config.max_model_len}"
        raise InvalidConfig("kv_blocks", reason)
    return list(_draw_requests(config))


def _draw_requests(config: SimulateConfig) -> Iterator[SimulatedRequest]:
    """Yield arrivals of a Poisson process; lengths are uniform."""
    chance = random.Random(config.seed)
    now = 0.0
    for _ in range(config.requests):
        if config.rate < math.inf:
            now += chance.expovariate(config.rate)
        yield SimulatedRequest(
            arrival_seconds=now,
            prompt_tokens=chance.randint(*config.prompt_tokens),
            output_tokens=chance.randint(*config.output_tokens),
        )


def read_trace(path: Path, max_model_len: int) -> list[SimulatedRequest]:
    """Read CSV with a header, or JSON lines; see list_requests.

    Args:
      max_model_len: limit of prompt and output tokens together.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidConfig.of_file("trace", "read", path, error) from error
    requests = []
    for number, fields in _list_fields(lines, path):
        request = _read_request(fields, path, number)
        num_tokens = request.prompt_tokens + request.output_tokens
        if num_tokens > max_model_len:
            reason = f"{num_tokens} tokens do not fit into {max_model_len}"
            raise _refuse(path, number, reason)
        requests.append(request)
    if not requests:
        raise InvalidConfig("trace", f"{path} has no requests")
    return sorted(requests, key=lambda request: request.arrival_seconds)


_NAMES = ("arrival_seconds", "prompt_tokens", "output_tokens")


def _list_fields(
    lines: list[str], path: Path
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield the number of each request's line, from 1, and its fields."""
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if filled and filled[0][1].lstrip().startswith("{"):
        for number, line in filled:
            try:
                yield number, msgspec.json.decode(line, type=dict[str, object])
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise _refuse(path, number, str(error)) from error
    elif filled:
        number, header = filled[0]
        names = [name.strip() for name in next(csv.reader([header]))]
        if sorted(names) != sorted(_NAMES):
            raise _refuse(path, number, f"the header must name {', '.join(_NAMES)}")
        for number, line in filled[1:]:
            values = next(csv.reader([line]))
            if len(values) != len(names):
                raise _refuse(
                    path, number, f"{len(names)} values wanted, got {len(values)}"
                )
            yield number, {n: v.strip() for n, v in zip(names, values)}


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int


def _read_request(
    fields: Mapping[str, object], path: Path, number: int
) -> SimulatedRequest:
    try:
        # Numbers of a CSV are strings.
        line = msgspec.convert(fields, _Line, strict=False)
    except msgspec.ValidationError as error:
        raise _refuse(path, number, str(error)) from error
    if not 0 <= line.arrival_seconds < math.inf:
        raise _refuse(path, number, "arrival_seconds must be 0 or more")
    for name in _NAMES[1:]:
        if getattr(line, name) < 1:
            raise _refuse(path, number, f"{name} must be at least 1")
    return SimulatedRequest(
        arrival_seconds=line.arrival_seconds,
        prompt_tokens=line.prompt_tokens,
        output_tokens=line.output_tokens,
    )


def _refuse(path: Path, number: int, reason: str) -> InvalidConfig:
    return InvalidConfig("trace", f"{path}, line {number}: {reason}")
