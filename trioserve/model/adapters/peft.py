"""Adapters in the format of peft: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
import re

from torch import Tensor

from .config import AdapterProblem, PeftConfig, read_config
from .description import LowRank, ReadAdapter
from .dora import divide_magnitude
from .experts import ExpertReader
from .files import digest, load_tensors, read_config_file, read_file, take_tensor
from .names import ModuleNames
from .part import ModelPart

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

# The name of a module, and of one of its tensors.
_NAME = re.compile(
    r"base_model\.model\.(.+)\."
    r"(?:(lora_A|lora_B)\.weight|(lora_magnitude_vector)(?:\.weight)?"
    r"|(lora_embedding_A|lora_embedding_B))"
)


def read_peft(folder: Path, part: ModelPart, max_bytes: int) -> ReadAdapter:
    """Read an adapter.

    Args:
      part: runs it.
      max_bytes: more are refused.

    Raises:
      AdapterProblem: its files are wrong, or the model cannot run it.
    """
    described = read_config_file(folder / _CONFIG, folder)
    config = read_config(described)
    if not (folder / _WEIGHTS).exists() and (folder / "adapter_model.bin").exists():
        raise AdapterProblem(
            "adapter_model.bin may run code when it is read: save it as safetensors"
        )
    data = read_file(folder / _WEIGHTS, folder, max_bytes)
    modules = _sort_tensors(load_tensors(data, _WEIGHTS))
    if not modules:
        raise AdapterProblem(f"{_WEIGHTS} has no tensors")
    experts = ExpertReader(config, part)
    names = ModuleNames(part.shapes)
    changes: dict[str, LowRank] = {}
    unmatched = []
    for module, tensors in modules.items():
        if "lora_magnitude_vector" in tensors and not config.use_dora:
            raise AdapterProblem(
                f"there is {module}.lora_magnitude_vector, but use_dora is false"
            )
        if experts.take(module, tensors):
            continue
        name = names.find(module)
        if name is None or name in changes:
            first = f"base_model.model.{module}.{min(tensors)}"
            part.refuse_unknown(first)
            unmatched.append(first)
            continue
        if reason := config.explain_foreign(module):
            raise AdapterProblem(f"there are tensors of {module}, but {reason}")
        changes[name] = _make_change(config, module, name, tensors, part)
    changes |= experts.make_changes()
    return ReadAdapter(
        changes=changes, digest=digest(described, data), unmatched=tuple(unmatched)
    )


def _sort_tensors(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each module, by their kinds.

    Raises:
      AdapterProblem: a tensor has another name than peft's.
    """
    modules: dict[str, dict[str, Tensor]] = {}
    for key in sorted(tensors):
        found = _NAME.fullmatch(key)
        if found is None:
            raise AdapterProblem(
                f"the tensor {key} is not supported: it is not part of a low-rank change "
                "(peft leaves out whole weights with save_embedding_layers=False)"
            )
        kind = next(filter(None, found.groups()[1:]))
        own = modules.setdefault(found[1], {})
        if kind in own:
            raise AdapterProblem(f"the tensor {key} is there twice")
        own[kind] = tensors[key]
    return modules


def _make_change(
    config: PeftConfig,
    module: str,
    name: str,
    tensors: Mapping[str, Tensor],
    part: ModelPart,
) -> LowRank:
    if "lora_embedding_A" in tensors or "lora_embedding_B" in tensors:
        raise AdapterProblem(
            f"the tensor {module}.lora_embedding_A is not supported: the vectors of "
            "tokens stay the model's"
        )
    key = config.find_name(module)
    rank = config.find_rank(key)
    num_outputs, num_inputs = part.shapes[name]
    a = take_tensor(tensors, module, "lora_A", (rank, num_inputs))
    b = take_tensor(tensors, module, "lora_B", (num_outputs, rank))
    change = LowRank(a=a, b=b * config.find_scale(key))
    if not config.use_dora:
        return part.take(name, change)
    magnitude = take_tensor(tensors, module, "lora_magnitude_vector", (num_outputs,))
    change = part.take(name, replace(change, output_scale=magnitude))
    return divide_magnitude(change, name, part)
