"""Loads a model's image processor from its folder, and tries it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ...config import MediaConfig
from ...errors import UnsupportedModel, WeightsBroken
from ...types.prompt import KEY_BYTES
from .preprocess import ImageProcessor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

# Large enough for the processors that divide an image into parts.
_PROBE_SIZE = (640, 480)


def load_image_processor(
    folder: Path, tokenizer: PreTrainedTokenizerBase, config: MediaConfig
) -> ImageProcessor | None:
    """Load a model's image processor and try it out. Blocks for a second or more.

    Code that lies beside the model is never run.

    Args:
      folder: a model in Hugging Face layout; nothing is read from elsewhere.
      tokenizer: the model's. Some processors add their tokens to it if they are
        missing.

    Returns:
      The processor; None for a model that has none.

    Raises:
      WeightsBroken: its files cannot be read, or the processor does not work.
      UnsupportedModel: transformers has no such processor, a package is missing, or
        images do not take the place of tokens.
    """
    files = _read_files(folder)
    if not _tell_of_images(files):
        return None
    name = _find_class_name(files)
    try:
        processor = _load_processor(folder, name, tokenizer)
        loaded = ImageProcessor(processor, tokenizer, config)
        probe = loaded.process(Image.new("RGB", _PROBE_SIZE), bytes(KEY_BYTES))
    except UnsupportedModel:
        raise
    # The processor needs a missing package, or cannot count the tokens of an image.
    except (ImportError, NotImplementedError) as error:
        raise UnsupportedModel(name, str(error) or type(error).__name__) from error
    # The readers of broken files raise errors of many classes.
    except Exception as error:
        raise WeightsBroken(str(folder), f"its image processor: {error}") from error
    if probe.num_vectors == 0:
        raise UnsupportedModel(name, "its images do not take the place of tokens")
    return loaded


def _read_files(folder: Path) -> list[dict[str, Any]]:
    """Read the files that may describe a processor, in transformers' order."""
    names = ("processor_config.json", "preprocessor_config.json")
    paths = [folder / name for name in (*names, "tokenizer_config.json", "config.json")]
    try:
        return [dict(json.loads(path.read_text())) for path in paths if path.exists()]
    except (OSError, TypeError, ValueError) as error:
        raise WeightsBroken(str(folder), f"its image processor: {error}") from error


def _tell_of_images(files: list[dict[str, Any]]) -> bool:
    # Newer files have the settings of all processors of a model.
    return any("image_processor_type" in {**file, **_nested(file)} for file in files)


def _nested(file: dict[str, Any]) -> dict[str, Any]:
    settings = file.get("image_processor")
    return settings if isinstance(settings, dict) else {}


def _find_class_name(files: list[dict[str, Any]]) -> str:
    """Return the class that a file names, or that belongs to the type of model."""
    # Imported here, because it takes seconds.
    from transformers.models.auto import processing_auto

    names = processing_auto.PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]
    said = [file["processor_class"] for file in files if file.get("processor_class")]
    kinds = [file["model_type"] for file in files if file.get("model_type")]
    known = [names.get(kind) for kind in kinds]
    name = next((name for name in (*said, *known) if isinstance(name, str)), None)
    if name is None:
        raise UnsupportedModel(
            kinds[0] if kinds else "of this model", "no file names a processor_class"
        )
    return name


def _load_processor(
    folder: Path, name: str, tokenizer: PreTrainedTokenizerBase
) -> ProcessorMixin:
    from transformers import AutoImageProcessor
    from transformers.models.auto.processing_auto import processor_class_from_name

    if name == "PixtralProcessor":
        # Imported here, because it takes seconds.
        from .pixtral import PixtralImages

        known: type[ProcessorMixin] | None = PixtralImages
    else:
        known = processor_class_from_name(name)
    if known is None:
        raise UnsupportedModel(name, "transformers has no such processor")
    processor_class = _without_other_parts(known)
    images = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
        folder, local_files_only=True, trust_remote_code=False
    )
    have = {"tokenizer": tokenizer, "image_processor": images}
    wanted = processor_class.get_attributes()  # type: ignore[no-untyped-call]
    settings, _ = processor_class.get_processor_dict(folder, local_files_only=True)
    processor: ProcessorMixin = processor_class.from_args_and_dict(
        [have.get(part) for part in wanted], settings
    )
    return processor


def _without_other_parts(known: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """Return a subclass that works without the parts for video and sound.

    Those for videos need torchvision; images do not.
    """

    class ImagesOnly(known):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, name: str, argument: object) -> Any:
            if argument is None:
                return None
            return super().check_argument_for_proper_class(name, argument)

    ImagesOnly.__name__ = known.__name__
    return ImagesOnly
