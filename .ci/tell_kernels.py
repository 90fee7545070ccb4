"""Loads a tiny model on the CPU, and logs which kernels this installation gives it."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from trioserve.config import ModelConfig
from trioserve.model.loading.load import load_model
from trioserve.testing.models import save_tiny_model

logging.basicConfig(format="%(message)s", level=logging.INFO)
with TemporaryDirectory() as folder:
    model = save_tiny_model("llama", Path(folder) / "model")
    load_model(model, ModelConfig(device="cpu"), name="tiny")
