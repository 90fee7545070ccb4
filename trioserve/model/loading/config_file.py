"""A model's config.json."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from ...errors import UnsupportedModel, WeightsBroken, shorten_message
from .quantisation import check_quantisation


def read_config(folder: Path) -> PreTrainedConfig:
    """Read the config.json of a model.

    Raises:
      WeightsBroken: the file cannot be read.
      UnsupportedModel: transformers does not know the type of the model.
      UnsupportedQuantization: the weights are quantised in a way that is not served.
    """
    try:
        described = json.loads((folder / "config.json").read_text())
        model_type = described.get("model_type", "(no model_type)")
    except (OSError, ValueError, AttributeError) as error:
        raise WeightsBroken(
            str(folder), f"config.json: {shorten_message(error)}"
        ) from None
    check_quantisation(folder, described)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True
        )
    except ValueError as error:
        # transformers raises the same error for an unknown type of model, for a type
        # that needs code of its own, and for values without sense.
        raise UnsupportedModel(str(model_type), shorten_message(error)) from None
    except Exception as error:
        # The constructor of a configuration may raise any error. The file is wrong.
        raise WeightsBroken(
            str(folder), f"config.json: {shorten_message(error)}"
        ) from None
    return config
