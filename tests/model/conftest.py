"""A simple planner, tiny models, and the output of transformers for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import functools
import hashlib
from pathlib import Path
import re
import shutil
from typing import Any

from PIL import Image
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoImageProcessor,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from trioserve.config import ModelConfig
from trioserve.kernels.library import open_library
from trioserve.model.loading.load import load_model
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.runtimes.native.scans import NativeScans
from trioserve.model.stages.loading import load_stage
from trioserve.model.stages.stage import LoadedStage
from trioserve.model.step.scans import Scans, TorchScans
from trioserve.testing.models import (
    make_tiny_model,
    make_tiny_vision_model,
    save_tiny_model,
)
from trioserve.testing.processors import save_tiny_processor
from trioserve.types.prompt import KEY_BYTES, EmbeddedInput
from trioserve.types.stage_place import Shard, StagePlace

from .planning import PlannedSequence, write_bytes
from .waiting import refuse_to_wait


@pytest.fixture(scope="session", autouse=True)
def quick_loads() -> Iterator[None]:
    """Let transformers load tiny models in two thirds of the time.

    It formats each configuration for a log that drops it, and compiles more patterns of the
    names of weights than `re` remembers.
    """
    with pytest.MonkeyPatch.context() as patch:
        for each in (PreTrainedConfig, GenerationConfig):
            patch.setattr(each, "__repr__", object.__repr__)
        patch.setattr(re, "_MAXCACHE", 10_000)
        yield


@pytest.fixture(params=["torch", "native"])
def scans(request: pytest.FixtureRequest) -> Iterator[Scans]:
    """Yield torch's scans, then the scans of the native kernels."""
    if request.param == "torch":
        yield TorchScans()
        return
    request.getfixturevalue("needs_kernels")
    library = open_library()
    pool = library.open_pool(2)
    yield NativeScans(library, pool, held=None)
    library.close_pool(pool)


@pytest.fixture
def no_sync() -> Callable[..., Any]:
    """`with no_sync():` fails where CUDA would make the host wait for the device."""
    return refuse_to_wait


class _RecordOperations(TorchDispatchMode):
    def __init__(self, record: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = tree_leaves((args, kwargs or {}, result))
        shapes = [tuple(x.shape) for x in tensors if isinstance(x, torch.Tensor)]
        self._record.append((str(func), *shapes))
        return result


@pytest.fixture
def record_operations() -> Callable[[], Any]:
    """`with record_operations() as record:` lists torch's operations and sizes."""

    @contextmanager
    def record() -> Iterator[list[tuple[Any, ...]]]:
        operations: list[tuple[Any, ...]] = []
        with _RecordOperations(operations):
            yield operations

    return record


class Oracle:
    """A model that transformers alone has loaded.

    It remembers its outputs, because many tests ask for the same ones: for each kind of
    kernels, and for each size of chunks.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._outputs: dict[Any, list[int]] = {}

    def generate(self, num_tokens: int, **inputs: Any) -> list[int]:
        """Return the greedy output, past any end of sequence.

        Args:
          inputs: arguments of transformers' `generate`; a prompt of tokens is repeated
            at the beginning of the output.
        """
        known = num_tokens, *((name, _identify(inputs[name])) for name in inputs)
        if known not in self._outputs:
            output = self.model.generate(
                **{name: self._place(value) for name, value in inputs.items()},
                do_sample=False,
                max_new_tokens=num_tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
            self._outputs[known] = output[0].tolist()
        return list(self._outputs[known])

    @torch.inference_mode()
    def check(self, outputs: Sequence[int], **inputs: Any) -> None:
        """Assert that each token of an output is the likeliest behind those before it.

        So it is the output of `generate`, which would take a pass for each token.

        Args:
          inputs: arguments of the model; input_ids or inputs_embeds are the prompt.
        """
        known = tuple(outputs), *((name, _identify(inputs[name])) for name in inputs)
        if known in self._outputs:
            return
        ids = torch.tensor([list(outputs)])
        arguments = {name: self._place(value) for name, value in inputs.items()}
        embeds = arguments.get("inputs_embeds")
        if embeds is None:
            arguments["input_ids"] = torch.cat((inputs["input_ids"], ids), dim=1)
            arguments["input_ids"] = self._place(arguments["input_ids"])
        else:
            more = self.model.get_input_embeddings()(self._place(ids))
            arguments["inputs_embeds"] = torch.cat((embeds, more), dim=1)
        for name in arguments.keys() & {"mm_token_type_ids", "token_type_ids"}:
            padding = arguments[name].new_zeros(ids.shape)
            arguments[name] = torch.cat((arguments[name], padding), dim=1)
        logits = self.model(**arguments, use_cache=False).logits[0]
        best = logits[-len(outputs) - 1 : -1].argmax(dim=-1).tolist()
        assert list(outputs) == best != []
        self._outputs[known] = best

    def _place(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.model.device)
        return value


def _identify(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    return repr(value)


@dataclass(frozen=True)
class Tiny:
    """A model that is loaded twice: by trioserve, and by transformers alone."""

    folder: Path
    loaded: LoadedModel
    oracle: Oracle

    def generate(
        self, prompt: Sequence[int], num_tokens: int, **settings: Any
    ) -> list[int]:
        """Return the greedy output of transformers, past any end of sequence."""
        inputs = torch.tensor([list(prompt)])
        output = self.oracle.generate(num_tokens, inputs=inputs, **settings)
        return output[len(prompt) :]

    def check(self, *sequences: PlannedSequence) -> None:
        """Assert that sequences of tokens alone have the output of `generate`."""
        for sequence in sequences:
            self.check_behind(sequence.prompt, sequence.outputs)

    def check_behind(
        self, prompt: Sequence[int], outputs: Sequence[int], **arguments: Any
    ) -> None:
        """Assert that a prompt has the output of `generate`."""
        input_ids = torch.tensor([list(prompt)])
        self.oracle.check(outputs, input_ids=input_ids, **arguments)

    def check_from(self, vectors: torch.Tensor, outputs: Sequence[int]) -> None:
        """Assert the same of a prompt of vectors, (num_vectors, hidden_size)."""
        self.oracle.check(outputs, inputs_embeds=vectors[None].cpu())

    def generate_from(
        self, vectors: torch.Tensor, num_tokens: int, **settings: Any
    ) -> list[int]:
        """Return the same for a prompt of vectors, (num_vectors, hidden_size)."""
        vectors = vectors[None].cpu()
        return self.oracle.generate(num_tokens, inputs_embeds=vectors, **settings)

    @torch.inference_mode()
    def embed(self, token_ids: Sequence[int]) -> torch.Tensor:
        """The model's own vectors of some tokens, (len(token_ids), hidden_size)"""
        embeddings: Any = self.oracle.model.get_input_embeddings()
        ids = torch.tensor(list(token_ids), device=self.oracle.model.device)
        vectors: torch.Tensor = embeddings(ids).cpu()
        return vectors

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """(len(token_ids), vocab_size) float32, in one forward pass"""
        output = self.oracle.model(torch.tensor([list(token_ids)]), use_cache=False)
        logits: torch.Tensor = output.logits[0].float()
        return logits


# The models whose layers run on the native kernels.
NATIVE_MODELS = {
    *("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gemma4_text"),
    *("phi3", "mixtral", "qwen2_moe", "qwen3_moe", "idefics3", "llava", "smolvlm"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "internvl"),
    *(
        "mistral3",
        "qwen3_5_text",
        "lfm2",
        "gemma3",
        "gemma4",
        "gemma4_e2b",
        "llava_next",
        "vipllava",
    ),
    *("deepseek_v3", "kimi_linear", "gpt_oss"),
}


@pytest.fixture(params=["torch", "native"])
def choose_kernels(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return each kind of kernels that can run a type of model."""
    if request.param == "native":
        request.getfixturevalue("needs_kernels")

    def choose(model_type: str) -> str:
        if request.param == "native" and model_type not in NATIVE_MODELS:
            pytest.skip(f"{model_type} has no native kernels")
        return str(request.param)

    return choose


@pytest.fixture
def tiny_by_kernels(
    choose_kernels: Callable[[str], str], tiny: Callable[..., Tiny]
) -> Callable[[str], Tiny]:
    """Build a tiny model on each kind of kernels that can run it."""
    return lambda model_type: tiny(model_type, kernels=choose_kernels(model_type))


@pytest.fixture
def tiny_vision_by_kernels(
    choose_kernels: Callable[[str], str], tiny_vision: Callable[..., TinyVision]
) -> Callable[[str], TinyVision]:
    """Build a tiny model that takes images, in the same way."""
    return lambda model_type: tiny_vision(
        model_type, kernels=choose_kernels(model_type)
    )


def load_oracle(auto: Any, folder: Path, device: str) -> Oracle:
    return make_oracle(auto.from_pretrained(folder), device)


def make_oracle(model: PreTrainedModel, device: str = "cpu") -> Oracle:
    model.set_attn_implementation("eager")
    torch.nn.Module.to(model, device)
    return Oracle(model.eval())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tiny]:
    """Build a tiny model of a type, once for all tests."""

    @functools.cache
    def save(model_type: str, device: str) -> tuple[Path, Oracle]:
        folder = tmp_path_factory.mktemp(model_type)
        model = make_tiny_model(model_type)
        model.save_pretrained(folder)
        return folder, make_oracle(model, device)

    @functools.cache
    def load(model_type: str, device: str, kernels: str) -> Tiny:
        folder, oracle = save(model_type, device)
        config = ModelConfig(device=device, kernels=kernels)  # type: ignore[arg-type]
        loaded = load_model(folder, config, name=model_type)
        return Tiny(folder=folder, loaded=loaded, oracle=oracle)

    # functools.cache knows an argument that is given from one that is left out.
    return lambda model_type="llama", device="cpu", kernels="torch": load(
        model_type, device, kernels
    )


# A layer for each of three stages.
_NUM_LAYERS: dict[str, dict[str, Any]] = {
    "gemma4_text": {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "gpt2": {"n_layer": 3},
    "gpt_oss": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen3_5_text": {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
}


@dataclass(frozen=True)
class Parted:
    """A whole model on torch's operators, and the parts that it can be loaded in."""

    folder: Path
    loaded: LoadedModel

    def stages(
        self, num_stages: int, kernels: str = "torch"
    ) -> tuple[LoadedStage, ...]:
        return tuple(
            self._load(StagePlace(stage=stage, num_stages=num_stages), kernels)
            for stage in range(num_stages)
        )

    def shards(self, count: int, kernels: str = "torch") -> list[LoadedStage]:
        shards = [Shard(index=index, count=count) for index in range(count)]
        return [
            self._load(StagePlace(stage=0, num_stages=1, shard=shard), kernels)
            for shard in shards
        ]

    @functools.cache
    def _load(self, place: StagePlace, kernels: str) -> LoadedStage:
        config = ModelConfig(device="cpu", kernels=kernels)  # type: ignore[arg-type]
        return load_stage(self.folder, config, name="tiny", place=place)


def save_parted(folder: Path, model_type: str, **changes: Any) -> Parted:
    save_tiny_model(model_type, folder, **changes)
    config = ModelConfig(device="cpu", kernels="torch")
    return Parted(folder, load_model(folder, config, name="tiny"))


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Parted]:
    """Build a tiny model, once for all tests."""

    @functools.cache
    def build(model_type: str, **changes: Any) -> Parted:
        return save_parted(tmp_path_factory.mktemp(model_type), model_type, **changes)

    return build


@pytest.fixture(scope="session")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Parted]:
    """Build a tiny model of three layers, once for all tests."""

    @functools.cache
    def build(model_type: str, **changes: Any) -> Parted:
        changes |= _NUM_LAYERS.get(model_type, {"num_hidden_layers": 3})
        return save_parted(tmp_path_factory.mktemp(model_type), model_type, **changes)

    return build


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """Return the folder of a tiny Llama, which a test may change."""
    return shutil.copytree(llama_folder, tmp_path / "model")


@dataclass(frozen=True)
class MixedPrompt:
    """A prompt with images, in the forms for the planner and for `generate`."""

    prompt: list[int]
    embedded: tuple[EmbeddedInput, ...]
    arguments: dict[str, torch.Tensor]


@dataclass(frozen=True)
class TinyVision(Tiny):
    """A model that takes images, with the processor that prepares them."""

    processor: Any

    def join(self, *pieces: list[int] | Image.Image) -> MixedPrompt:
        """Join tokens and images as the model's processor does."""
        images = [piece for piece in pieces if isinstance(piece, Image.Image)]
        prompt: list[int] = []
        embedded = []
        for piece in pieces:
            if isinstance(piece, list):
                prompt += piece
            else:
                embedded.append(self._place(piece, prompt))
        joined = self._process(images)
        is_image = (torch.tensor([prompt]) == self._image_token_id).int()
        if "image_grid_thw" in joined or "image_position_ids" in joined:
            joined["mm_token_type_ids"] = is_image
        if self._model_type == "gemma3":
            joined["token_type_ids"] = is_image
        joined.pop("num_soft_tokens_per_image", None)
        return MixedPrompt(prompt, tuple(embedded), joined)

    def check_at(self, mixed: MixedPrompt, outputs: Sequence[int]) -> None:
        """Assert that a prompt with images has the output of `generate`."""
        arguments = {k: v for k, v in mixed.arguments.items() if k != "input_ids"}
        self.check_behind(mixed.prompt, outputs, **arguments)

    @property
    def _image_token_id(self) -> int:
        image_token_id: int = self.oracle.model.config.image_token_id
        return image_token_id

    @property
    def _model_type(self) -> str:
        model_type: str = self.oracle.model.config.model_type
        return model_type

    def _process(self, images: list[Image.Image]) -> dict[str, torch.Tensor]:
        processed = dict(self.processor(images=[images], return_tensors="pt"))
        processed.pop("num_crops", None)
        return processed

    def _place(self, image: Image.Image, prompt: list[int]) -> EmbeddedInput:
        """Add an image's positions to a prompt; return the image as an input."""
        tensors = self._process([image])
        begin = len(prompt)
        for length in self._count_vectors(tensors):
            # A token that is not of the image stands before each of its parts.
            prompt += [7, *[self._image_token_id] * length]
        runs = find_runs(prompt, begin, self._image_token_id)
        num_vectors = sum(run_end - run_begin for run_begin, run_end in runs)
        content = b"".join(write_bytes(t).data for t in tensors.values())
        key = hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
        return EmbeddedInput(
            kind="image",
            runs=runs,
            keys=key * num_vectors,
            tensors={name: write_bytes(value) for name, value in tensors.items()},
        )

    def _count_vectors(self, tensors: dict[str, torch.Tensor]) -> list[int]:
        """Count the vectors of each part, with the sizes of testing/processors.py."""
        if "image_grid_thw" in tensors:
            return [int(tensors["image_grid_thw"].prod()) // 4]
        if "pixel_attention_mask" in tensors:
            return [4] * tensors["pixel_values"].shape[1]
        if "num_soft_tokens_per_image" in tensors:
            return [int(tensors["num_soft_tokens_per_image"])]
        if self._model_type == "llava_next":
            # Rows of two parts without their padding, and a small picture of the whole.
            model = self.oracle.model
            own = {name: each.to(model.device) for name, each in tensors.items()}
            with torch.inference_mode():
                output = model.get_image_features(**own)
            return [len(output.pooler_output[0])]
        if self._model_type == "internvl":
            return [4] * len(tensors["pixel_values"])
        if "image_sizes" in tensors:
            height, width = (tensors["image_sizes"][0] // 28).tolist()
            return [width] * height
        return [16]


def find_runs(
    prompt: list[int], begin: int, token_id: int
) -> tuple[tuple[int, int], ...]:
    """Return the runs of one token in a prompt, from position `begin` on."""
    runs: list[tuple[int, int]] = []
    for position in range(begin, len(prompt)):
        if prompt[position] != token_id:
            continue
        if runs and runs[-1][1] == position:
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    return tuple(runs)


# Models with the processor of another type.
_PROCESSORS = {
    "idefics3": "smolvlm",
    "qwen3_5": "qwen3_vl",
    "qwen3_5_moe": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "glm4v_moe": "glm4v",
    "vipllava": "llava",
}


# Other checkpoints of a type: the type, and the fields that differ.
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma4_e2b": (
        "gemma4",
        {
            "text_config": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "use_bidirectional_attention": None,
                "num_kv_shared_layers": 2,
                "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 640,
                "use_double_wide_mlp": True,
                "attention_k_eq_v": False,
            }
        },
    )
}


@pytest.fixture(scope="session")
def tiny_vision(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyVision]:
    """Build a tiny model that takes images, once for all tests."""

    @functools.cache
    def save(model_type: str, device: str) -> tuple[Path, Oracle]:
        model_type, changes = _VARIANTS.get(model_type, (model_type, {}))
        folder = save_tiny_processor(
            _PROCESSORS.get(model_type, model_type),  # type: ignore[arg-type]
            tmp_path_factory.mktemp(model_type),
        )
        model = make_tiny_vision_model(model_type, folder, **changes)
        model.save_pretrained(folder)
        return folder, make_oracle(model, device)

    @functools.cache
    def load(model_type: str, device: str, kernels: str) -> TinyVision:
        folder, oracle = save(model_type, device)
        config = ModelConfig(device=device, kernels=kernels)  # type: ignore[arg-type]
        return TinyVision(
            folder=folder,
            loaded=load_model(folder, config, name=model_type),
            oracle=oracle,
            processor=AutoImageProcessor.from_pretrained(folder),
        )

    return lambda model_type, device="cpu", kernels="torch": load(
        model_type, device, kernels
    )
