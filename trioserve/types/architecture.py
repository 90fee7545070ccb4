"""The task of a model, by the name of its architecture."""

from __future__ import annotations

from .pooling import PoolingTask, Task
from .sentence import SentenceFolder

_CONDITIONAL = "ForConditionalGeneration"

_GENERATORS = ("ForCausalLM", "LMHeadModel", _CONDITIONAL)

# Ending of the name of a class -> task of its head.
HEADS: dict[str, PoolingTask] = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "token_classify",
}


def find_head(architecture: str) -> PoolingTask | None:
    """Return the task of a classifier; None for other models."""
    for ending, task in HEADS.items():
        if architecture.endswith(ending):
            return task
    return None


def guess_task(architecture: str, sentence: SentenceFolder | None) -> Task | None:
    """Return the task of a model.

    Args:
      architecture: the name of its class, such as "LlamaForCausalLM".
      sentence: the contents of sentence-transformers' files.

    Returns:
      The task; None if the name does not tell. A class with such a name has no head.
    """
    if sentence is not None and sentence.modes:
        return "embed"
    # Cross-encoders, too, come in folders of sentence-transformers, and they pool nothing.
    head = find_head(architecture)
    if head is not None:
        return head
    if sentence is not None or "ColBERT" in architecture:
        return "token_embed"
    return "generate" if architecture.endswith(_GENERATORS) else None


def is_conditional(architecture: str) -> bool:
    """Return whether an answer depends on more than text, such as images."""
    return architecture.endswith(_CONDITIONAL)
