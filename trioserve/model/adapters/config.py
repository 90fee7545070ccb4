"""The adapter_config.json of an adapter in peft's format."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
import json
import math
from typing import Any

import msgspec
import regex

# Fields that change no output once the matrices are there. (fan_in_fan_out tells how the model's
# weights lie, which is known here.)
_INERT = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "corda_config", "eva_config"),
        *(
            "fan_in_fan_out",
            "inference_mode",
            "lora_dropout",
            "lora_ga_config",
            "loftq_config",
        ),
        *("megatron_core", "qalora_group_size", "revision"),
        *("runtime_config", "task_type"),
    }
)

# Ways to begin the training that change the model's own weights, too.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")

# A pattern of a file that nobody here wrote could take years.
_PATTERN_SECONDS = 0.2
_MAX_RANK = 2**14
# A pattern without any sign of regular expressions but the dot.
_IS_PLAIN = regex.compile(r"[A-Za-z0-9_.]+").fullmatch
# Others are compiled, once for all modules.
_MAX_PATTERNS = 1000
_compile = lru_cache(_MAX_PATTERNS)(regex.compile)


class AdapterProblem(Exception):
    """Raised with the reason why an adapter is refused; it names the field."""


class PeftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that decide what an adapter computes, with peft's defaults.

    Source: peft 0.21, tuners/lora/config.py.
    """

    peft_type: str
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None
    target_parameters: list[str] | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    init_lora_weights: bool | str | None = True
    bias: str | None = "none"
    peft_version: str | None = None

    def find_rank(self, name: str) -> int:
        """Return the rank of the matrices of a module, or of a parameter."""
        ranks = self.rank_pattern or {}
        return ranks.get(_find_key("rank_pattern", ranks, name), self.r)

    def find_scale(self, name: str) -> float:
        """Return the factor of the matrices of a module, or of a parameter."""
        alphas, rank = self.alpha_pattern or {}, self.find_rank(name)
        key = _find_key("alpha_pattern", alphas, name)
        divisor = math.sqrt(rank) if self.use_rslora else rank
        return alphas.get(key, self.lora_alpha) / divisor

    def names_parameter(self, name: str) -> bool:
        """Return whether a parameter is one of the adapter's."""
        return _names(self.target_parameters, "target_parameters", name)

    def find_name(self, module: str) -> str:
        """Return the name by which patterns know a module: its own, or its weight's."""
        weight = f"{module}.weight"
        return weight if self.names_parameter(weight) else module

    def explain_foreign(self, module: str) -> str | None:
        """Return why a module is none of the adapter's; None if it is one."""
        if self.names_parameter(f"{module}.weight"):
            return None
        if _names(self.exclude_modules, "exclude_modules", module):
            return "exclude_modules names it"
        targets = self.target_modules
        if isinstance(targets, str) and targets.lower() == "all-linear":
            return None
        if not _names(targets, "target_modules", module):
            return "target_modules does not name it"
        if isinstance(targets, list) and module not in targets:
            return self._explain_layer(module)
        return None

    def _explain_layer(self, module: str) -> str | None:
        wanted = self.layers_to_transform
        if wanted is None or wanted == []:
            return None
        patterns = self.layers_pattern or ()
        beginnings = [
            rf"(?:^|.*?\.){each}\.(?P<layer>\d+)\."
            for each in ([patterns] if isinstance(patterns, str) else patterns)
        ]
        for beginning in beginnings or [r".*?\.[^.]*\.(?P<layer>\d+)\."]:
            found = _match("layers_pattern", f"{beginning}.*", module)
            if found is not None:
                layers = [wanted] if isinstance(wanted, int) else wanted
                if int(found["layer"]) in layers:
                    return None
                break
        return "layers_to_transform does not name its layer"


def read_config(data: bytes) -> PeftConfig:
    """Decode adapter_config.json.

    Raises:
      AdapterProblem: a field has a wrong value, or one that this server does not compute.
    """
    try:
        fields: Any = json.loads(data)
        config = msgspec.convert(fields, PeftConfig, strict=True)
    except (ValueError, RecursionError) as error:
        raise AdapterProblem(f"adapter_config.json is wrong: {error}") from None
    _check(config)
    known = {*PeftConfig.__struct_fields__, *_INERT}
    for name in sorted(fields.keys() - known):
        # The fields of kinds of adapters that are not computed here are off by default.
        if fields[name] not in (None, False, {}, []):
            raise AdapterProblem(f"{name} is not supported")
    return config


def _check(config: PeftConfig) -> None:
    init = str(config.init_lora_weights).lower()
    if config.peft_type != "LORA":
        raise AdapterProblem(f"peft_type is {config.peft_type[:64]!r}, not 'LORA'")
    if config.bias not in (None, "none"):
        raise AdapterProblem("bias is not supported: the model keeps its own biases")
    if init.startswith(_CHANGES_BASE):
        raise AdapterProblem(
            f"init_lora_weights is {init[:64]!r}, which changes the model's own weights: "
            "convert the adapter with peft's path_initial_model_for_weight_conversion"
        )
    for name, numbers in (
        ("r", (config.r,)),
        ("rank_pattern", (config.rank_pattern or {}).values()),
    ):
        if not all(0 < number <= _MAX_RANK for number in numbers):
            raise AdapterProblem(f"{name} must be from 1 to {_MAX_RANK}")
    for name, alphas in (
        ("lora_alpha", (config.lora_alpha,)),
        ("alpha_pattern", (config.alpha_pattern or {}).values()),
    ):
        if not all(map(math.isfinite, alphas)):
            raise AdapterProblem(f"{name} must be finite")
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = getattr(config, name) or ()
        if len(patterns) - sum(map(bool, map(_IS_PLAIN, patterns))) > _MAX_PATTERNS:
            raise AdapterProblem(f"{name} has more than {_MAX_PATTERNS} patterns")


def _names(targets: list[str] | str | None, field: str, module: str) -> bool:
    """Return whether a list of names or a pattern has a module."""
    if isinstance(targets, str):
        return _match(field, targets, module) is not None
    return any(module == each or module.endswith(f".{each}") for each in targets or ())


def _find_key(field: str, patterns: Iterable[str], module: str) -> str:
    """Return the first pattern at the end of a module's name; else the name."""
    for pattern in patterns:
        # A file may have a pattern for each module.
        if _IS_PLAIN(pattern):
            is_found = _names_end(pattern, module)
        else:
            is_found = _match(field, rf"(.*\.)?({pattern})", module) is not None
        if is_found:
            return pattern
    return module


def _names_end(pattern: str, module: str) -> bool:
    """Match the end of a name, from a dot on; a dot of the pattern is any character."""
    rest = len(module) - len(pattern)
    if rest < 0 or (rest and module[rest - 1] != "."):
        return False
    return all(p in (".", c) for p, c in zip(pattern, module[rest:]))


def _match(field: str, pattern: str, module: str) -> regex.Match[str] | None:
    """Match a whole name.

    Raises:
      AdapterProblem: the pattern of the field is none, or takes too long.
    """
    try:
        return _compile(pattern).fullmatch(module, timeout=_PATTERN_SECONDS)
    except TimeoutError:
        raise AdapterProblem(f"a pattern in {field} takes too long") from None
    except (regex.error, RecursionError) as error:
        raise AdapterProblem(f"a pattern in {field} is wrong: {error}") from None
