"""A model's generation_config.json: default sampling, and the tokens that end a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ....config import ModelConfig
from ....errors import InvalidConfig, InvalidParameter, shorten_message
from ....types.sampling import MODEL_DEFAULTS, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def read_default_sampling(
    folder: Path, config: ModelConfig
) -> tuple[tuple[str, float], ...]:
    """Return the fields of sampling that the model's author has chosen.

    Raises:
      InvalidConfig: the file cannot be used.
    """
    path = folder / "generation_config.json"
    if config.generation_config == "none" or not path.exists():
        return ()
    try:
        described = json.loads(path.read_text())
        # Fields that are not in the file have transformers' defaults, which are not
        # the author's choice.
        fields = {
            name: described[name]
            for name in MODEL_DEFAULTS
            if described.get(name) is not None
        }
        SamplingParams(**fields)
    except (OSError, ValueError, TypeError, AttributeError, InvalidParameter) as error:
        raise InvalidConfig(
            "generation_config",
            f"the model's generation_config.json cannot be used ({shorten_message(error)}); "
            "pass none to leave it out",
        ) from None
    # Some files have floats where integers are meant.
    kinds = {name: type(getattr(SamplingParams(), name)) for name in fields}
    return tuple((name, kinds[name](value)) for name, value in fields.items())


def find_eos(model: PreTrainedModel) -> frozenset[int]:
    """Return the ids of the tokens that end a text."""
    eos = None
    if model.generation_config is not None:
        eos = model.generation_config.eos_token_id
    if eos is None:
        eos = getattr(model.config.get_text_config(decoder=True), "eos_token_id", None)
    return _list_ids(eos)


def read_eos(folder: Path, in_config: int | list[int] | None) -> frozenset[int]:
    """Return the ids of the tokens that end a text, as find_eos does without a model.

    Args:
      in_config: those in config.json, which count if generation_config.json has none.
    """
    try:
        described = json.loads((folder / "generation_config.json").read_bytes())
        eos = described.get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        eos = None
    return _list_ids(in_config if eos is None else eos)


def _list_ids(eos: int | list[int] | None) -> frozenset[int]:
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)
