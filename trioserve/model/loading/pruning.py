"""Build a model without some of its modules.

transformers reads only the weights of modules that a model has. So modules that are removed
before the weights are read take no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
import re
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from .files.architecture import find_class
from .files.facts import ModelFacts


def choose_class(facts: ModelFacts) -> type[PreTrainedModel]:
    """Return the class of a model's modules.

    Raises:
      UnsupportedModel
    """
    model_class: type[PreTrainedModel] = find_class(facts.config)
    if facts.is_text_part:
        return make_pruned_class(model_class, keep_text)
    if facts.vision is not None and facts.vision.unread:
        return make_pruned_class(
            model_class, partial(_remove, names=facts.vision.unread)
        )
    return model_class


def make_pruned_class(
    model_class: type[PreTrainedModel], prune: Callable[[Any], None]
) -> type[PreTrainedModel]:
    """Return a class whose models lack some modules.

    Args:
      prune: removes them from a new model, which has no weights yet.
    """

    def build(self: Any, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, config, *args, **kwargs)
        prune(self)
        _forget_ties(self)

    # The class keeps the name of the original: transformers needs it to rename weights,
    # and to find the outputs that can be recorded.
    return type(
        model_class.__name__,
        (model_class,),
        {
            "__init__": build,
            "__module__": model_class.__module__,
            "__qualname__": model_class.__qualname__,
        },
    )


def keep_text(model: Any) -> None:
    """Remove the modules that read images, sound and video.

    They stand beside the decoder, or beside a module around it. A model that calls one of
    them for text fails in the trial run before its weights are read.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    kept = {
        module
        for part in (model.get_decoder(), *ends)
        if part is not None
        for module in part.modules()
    }
    removed: list[str] = []
    for name, module in list(model.named_modules()):
        is_outermost = not name.startswith(tuple(f"{each}." for each in removed))
        has_weights = any(True for _ in module.parameters())
        if is_outermost and has_weights and kept.isdisjoint(module.modules()):
            removed.append(name)
    _remove(model, removed)


def _remove(model: Any, names: Sequence[str]) -> None:
    """Remove modules of a new model, and let their weights be ignored."""
    for name in names:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, None)
    # transformers would warn of all their weights.
    model._keys_to_ignore_on_load_unexpected = {
        *(model._keys_to_ignore_on_load_unexpected or ()),
        *(rf"^{re.escape(name)}\." for name in names),
    }


def _forget_ties(model: Any) -> None:
    """Forget that removed weights are those of other modules."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    model.all_tied_weights_keys = {
        target: source
        for target, source in model.all_tied_weights_keys.items()
        if {target, source} <= names
    }
