"""The facts about a loaded model that other rooms need."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .repetition import RepetitionDetection
from .sampling import DEFAULT_MAX_LOGPROBS
from .windows import WindowLayers

# The refusal of an image by a model of text.
SEES_NO_IMAGES = "this model sees no images"


# Clients of Ollama add it to names without a tag.
_DEFAULT_TAG = ":latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """The files of a model's weights.

    Args:
      form: safetensors or gguf.
      num_parameters: 0 if several of them are packed into one number.
      number_type: the type of most numbers, such as BF16 or Q4_K.
      changed_at: seconds since 1970.
    """

    form: str = "safetensors"
    num_bytes: int = 0
    num_parameters: int = 0
    number_type: str = ""
    changed_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts about a loaded model that other rooms need.

    Args:
      name: the name that clients use, and that answers have.
      other_names: further names that clients may use.
      source: the model as the operator wrote it, which clients may also write.
      architecture: transformers' class name.
      vocab_size: rows of the output projection; every token id is lower.
      max_model_len: tokens of prompt and output together.
      eos_token_ids: generation ends after any of these.
      default_sampling: fields of SamplingParams that the model's own
        generation_config sets.
      stop_repetition: rule for sequences whose requests have none; None lets them go on.
      kv_bytes_per_token: bytes of keys and values that all layers keep for a token.
      windows: the layers with windows, which keep only the last tokens.
      state_bytes: bytes of states that all layers keep for a sequence.
      hidden_size: width of the vectors that the first layer reads.
      dtype: torch's name of their type.
      takes_images: it has an encoder for images.
      joins_images: the tokens of an image see each other, so a step computes it whole.
      max_image_tokens: the longest image, or part of one, for which a step has room; None if
        steps may divide images.
      fingerprint: a string that changes when the same request could get another answer.
      max_logprobs: alternatives to a token that a request may ask for; -1 sets no limit.
      logits_processors: names of the plug-ins that requests may name.
      kernels: the code of its layers: torch, or native and an instruction set.
      weights: its files, for clients that list models.
      device_type: torch's name of the kind of device that it is on.
      cache_bytes: size of its cache of keys, values and states.
      memory_bytes: memory that its process holds with a full cache; 0 if the model has no
        process of its own.
    """

    name: str
    other_names: tuple[str, ...] = ()
    source: str = ""
    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    default_sampling: tuple[tuple[str, float], ...] = ()
    stop_repetition: RepetitionDetection | None = None
    kv_bytes_per_token: int = 0
    windows: WindowLayers | None = None
    state_bytes: int = 0
    hidden_size: int = 0
    dtype: str = "float32"
    takes_images: bool = False
    joins_images: bool = False
    max_image_tokens: int | None = None
    fingerprint: str = ""
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    logits_processors: tuple[str, ...] = ()
    kernels: str = "torch"
    weights: WeightFiles = WeightFiles()
    device_type: str = "cpu"
    cache_bytes: int = 0
    memory_bytes: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients are told."""
        return self.name, *self.other_names

    def has_name(self, name: str) -> bool:
        """Return whether clients may use a name, which may have Ollama's default tag."""
        return find_name(name, {*self.names, self.source}) is not None


def strip_tag(name: str) -> str:
    """Return a name without Ollama's default tag."""
    return name.removesuffix(_DEFAULT_TAG)


def find_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a client means, who may add Ollama's default tag."""
    return next((each for each in (name, strip_tag(name)) if each in known), None)
