"""A preview, by the configuration alone, of how a model would run here."""

from __future__ import annotations

from dataclasses import dataclass
import json
from pathlib import Path

import torch

from ...config import ModelConfig
from ...types.windows import WindowLayers
from ..attention.cache_memory import choose_kv_dtype, count_kv_bytes
from ..attention.windows import find_windows
from ..runtimes.choice import check_need
from ..states.spec import count_state_bytes
from .files.config_file import check_dequantisation
from .files.facts import read_facts
from .obstacle import find_obstacle
from .outline import find_dtype, watch_outline
from .plain.llama import outline_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The way in which a model would run.

    Args:
      max_model_len: tokens of one sequence at most.
      dtype: of the weights; None if only the weights tell it.
      kv_bytes_per_token: bytes of keys and values of all layers, in float32 if only the
        weights tell the type; None if the model cannot run without weights.
      windows: the layers with windows among them, in the same way.
      state_bytes: bytes of states of a sequence in all layers, in the same way.
      no_kernels: the reason why its layers run by transformers' modules; None if they run on
        trioserve's kernels.
      keeps_weights: its quantised weights stay so, if the kernels can read their groups.
    """

    architecture: str
    max_model_len: int
    dtype: str | None
    kv_bytes_per_token: int | None
    windows: WindowLayers | None
    state_bytes: int | None
    no_kernels: str | None
    keeps_weights: bool = False


def preview_model(folder: Path, config: ModelConfig) -> Preview:
    """Return how a model that generates text would run.

    Raises:
      UnsupportedModel, UnsupportedQuantization, WeightsBroken, InvalidConfig: the model
        would not run.
    """
    plain = outline_plain(folder, config)
    if plain is not None:
        described = json.loads((folder / "config.json").read_bytes())
        return Preview(
            architecture=described["architectures"][0],
            max_model_len=plain.max_model_len,
            dtype=str(described.get("dtype") or described["torch_dtype"]),
            kv_bytes_per_token=plain.kv_bytes_per_token,
            windows=None,
            state_bytes=0,
            no_kernels=None,
        )
    facts = read_facts(folder, config)
    watched = watch_outline(facts)
    dtype = find_dtype(facts, config)
    kv_dtype = choose_kv_dtype(config, dtype or torch.float32)
    obstacle = find_obstacle(facts, watched, dtype or torch.float32)
    if not config.wants_native:
        obstacle = "the options say so"
    elif obstacle is not None:
        check_need(config, obstacle)
    if facts.keeps_weights and obstacle is not None:
        check_dequantisation(folder, config, obstacle)
    return Preview(
        architecture=facts.architecture,
        max_model_len=facts.max_model_len,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        kv_bytes_per_token=(
            None if watched is None else count_kv_bytes(watched.layers, kv_dtype)
        ),
        windows=(None if watched is None else find_windows(watched.layers, kv_dtype)),
        state_bytes=(
            None
            if watched is None
            else count_state_bytes(watched.states, dtype or torch.float32)
        ),
        no_kernels=obstacle,
        keeps_weights=facts.keeps_weights and obstacle is None,
    )
