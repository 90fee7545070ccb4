"""The modules of a sentence-transformers folder that come after its pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import pickle

from safetensors import SafetensorError
from safetensors.torch import load_file
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize

from ...errors import UnsupportedModel, WeightsBroken
from ...types.sentence import SentenceModule

# (n, width) float32 -> (n, another width) float32.
VectorModule = Callable[[Tensor], Tensor]

# Modules whose classes a file may name; they are built without arguments.
_ACTIVATION_MODULES = ("torch.nn.modules.activation", "torch.nn.modules.linear")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChain:
    """Modules that vectors pass through, one after the other.

    Args:
      width: width of the resulting vectors.
      normalizes: the vectors must be brought to length 1 at the end. The caller does
        that, because vectors may be cut before.
    """

    modules: tuple[VectorModule, ...]
    width: int
    normalizes: bool

    def __call__(self, vectors: Tensor) -> Tensor:
        for module in self.modules:
            vectors = module(vectors)
        return vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A linear layer with an activation function.

    Args:
      weight: (out, in).
      bias: (out,).
      residual: added to the output: nothing, the input, or the input times a matrix.
    """

    weight: Tensor
    bias: Tensor | None = None
    activation: VectorModule | None = None
    residual: VectorModule | None = None

    def __call__(self, vectors: Tensor) -> Tensor:
        made = linear(vectors, self.weight, self.bias)
        if self.activation is not None:
            made = self.activation(made)
        return made if self.residual is None else made + self.residual(vectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """The same as nn.LayerNorm, without its state for training."""

    weight: Tensor
    bias: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        return layer_norm(vectors, self.weight.shape, self.weight, self.bias)


def bring_to_length_1(vectors: Tensor) -> Tensor:
    return normalize(vectors, p=2.0, dim=-1)


def load_modules(
    folder: Path,
    modules: Sequence[SentenceModule],
    *,
    width: int,
    device: torch.device,
) -> ModuleChain:
    """Load the modules of a folder, in float32.

    Args:
      width: width of the vectors for the first module.

    Raises:
      WeightsBroken: weights are missing, or do not fit the width of the vectors.
      UnsupportedModel: an activation function is not one of torch's.
    """
    loaded: list[VectorModule] = []
    last = len(modules)
    while last > 0 and modules[last - 1].kind == "normalize":
        last -= 1
    for module in modules[:last]:
        if module.kind == "normalize":
            loaded.append(bring_to_length_1)
            continue
        weights = ModuleWeights(folder, module.path, device)
        if module.kind == "layer_norm":
            loaded.append(_load_layer_norm(weights, width))
            continue
        dense = _load_dense(weights, module, width)
        width = dense.weight.shape[0]
        loaded.append(dense)
    return ModuleChain(
        modules=tuple(loaded), width=width, normalizes=last < len(modules)
    )


def _load_dense(weights: ModuleWeights, module: SentenceModule, width: int) -> Dense:
    weight = weights.take("linear.weight", None, width)
    num_outputs = weight.shape[0]
    bias = None
    if "linear.bias" in weights:
        bias = weights.take("linear.bias", num_outputs)
    residual: VectorModule | None = None
    if module.adds_input and num_outputs == width:
        residual = _pass
    elif module.adds_input:
        residual = Dense(weight=weights.take("residual.weight", num_outputs, width))
    return Dense(
        weight=weight,
        bias=bias,
        activation=_make_activation(module.activation),
        residual=residual,
    )


def _load_layer_norm(weights: ModuleWeights, width: int) -> LayerNorm:
    return LayerNorm(
        weight=weights.take("norm.weight", width), bias=weights.take("norm.bias", width)
    )


def _pass(vectors: Tensor) -> Tensor:
    return vectors


def _make_activation(name: str) -> VectorModule | None:
    """Build one of torch's activation functions; other names in a file are refused."""
    module, _, class_name = name.rpartition(".")
    if class_name == "Identity":
        return None
    kind = getattr(nn, class_name, None)
    is_torchs = module == "torch.nn" or module in _ACTIVATION_MODULES
    if (
        not is_torchs
        or not isinstance(kind, type)
        or kind.__module__ not in _ACTIVATION_MODULES
    ):
        raise UnsupportedModel(name, "it is not an activation function of torch.nn")
    try:
        activation: nn.Module = kind()
    except TypeError as error:
        raise UnsupportedModel(name, f"as an activation function: {error}") from error
    if next(activation.parameters(), None) is not None:
        raise UnsupportedModel(name, "as an activation function with weights")
    return activation.eval()


class ModuleWeights:
    """The tensors of a module's folder.

    Args:
      folder: the model's.
      path: the module's folder, relative to that.
      device: where the tensors are needed.

    Raises:
      WeightsBroken: they are missing, or cannot be read.
    """

    def __init__(self, folder: Path, path: str, device: torch.device) -> None:
        self._source = str(folder)
        self._path = path
        self._device = device
        self._tensors = self._read(folder / path)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor of a given shape, in float32; None is any size."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise WeightsBroken(self._source, f"{self._path} has no tensor {name}")
        is_as_wanted = tensor.dim() == len(shape) and all(
            wanted in (None, size) for wanted, size in zip(shape, tensor.shape)
        )
        if not is_as_wanted:
            found = "x".join(map(str, tensor.shape))
            wanted_shape = "x".join("any" if n is None else str(n) for n in shape)
            reason = f"{self._path}: {name} is {found}, not {wanted_shape}"
            raise WeightsBroken(self._source, reason)
        return tensor.to(self._device, torch.float32)

    def _read(self, path: Path) -> Mapping[str, Tensor]:
        safe, pickled = path / "model.safetensors", path / "pytorch_model.bin"
        try:
            if safe.is_file():
                return load_file(safe)
            if pickled.is_file():
                return self._read_pickle(pickled)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise WeightsBroken(self._source, f"{self._path}: {error}") from error
        reason = f"{self._path} has neither {safe.name} nor {pickled.name}"
        raise WeightsBroken(self._source, reason)

    def _read_pickle(self, path: Path) -> Mapping[str, Tensor]:
        try:
            # With weights_only, the pickle runs no code: it gives tensors or fails.
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, EOFError) as error:
            raise ValueError(f"{path.name} does not hold tensors alone") from error
        if not isinstance(tensors, dict) or not all(
            isinstance(tensor, Tensor) for tensor in tensors.values()
        ):
            raise ValueError(f"{path.name} does not hold tensors by name")
        return tensors
