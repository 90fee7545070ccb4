"""Find the tasks of a pooling model, and load the modules that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import json
from pathlib import Path

from ...config import PoolingConfig
from ...errors import InvalidConfig, WeightsBroken
from ...types.pooling import PoolingInfo, PoolingTask
from ...types.sentence import PoolingMode, SentenceFolder, SentenceModule
from ..encoder import LoadedEncoder
from .modules import Dense, ModuleChain, load_modules
from .tasks import (
    ClassifyTexts,
    ClassifyTokens,
    EmbedTexts,
    EmbedTokens,
    Postprocess,
    Task,
)

_MODES: Mapping[str, PoolingMode] = {"cls": "cls", "mean": "mean", "last": "lasttoken"}

# Without other files, vectors are compared by their cosine.
_NORMALIZE = (SentenceModule(kind="normalize"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTasks:
    """The tasks of a model.

    Args:
      averages_similarity: as in SentenceFolder.
    """

    info: PoolingInfo
    tasks: Mapping[PoolingTask, Task]
    averages_similarity: bool = False


def load_tasks(
    encoder: LoadedEncoder,
    folder: Path,
    sentence: SentenceFolder | None,
    config: PoolingConfig,
) -> LoadedTasks:
    """Load the modules that turn the encoder's states into results.

    Args:
      folder: the model's.
      sentence: the contents of sentence-transformers' files; None if there are none.

    Raises:
      WeightsBroken: the weights of a module, or a value of config.json, cannot be used.
      UnsupportedModel: a module cannot be run.
      InvalidConfig: an option makes no sense for the encoder's task.
    """
    check_pooling(encoder.task, sentence, config)
    match encoder.task:
        case "embed":
            return _load_embedder(encoder, folder, sentence, config)
        case "token_embed":
            return _load_token_embedder(encoder, folder, sentence)
        case "classify" | "token_classify":
            return _load_classifier(encoder)


def check_pooling(
    task: PoolingTask, sentence: SentenceFolder | None, config: PoolingConfig
) -> None:
    """Refuse options that make no sense for a model, without its weights.

    Args:
      task: the encoder's.
      sentence: as in load_tasks.

    Raises:
      InvalidConfig
    """
    if task != "embed":
        if config.pooling != "auto":
            reason = f"nothing is pooled where the task is {task}"
            raise InvalidConfig("pooling", reason)
        if config.matryoshka:
            raise InvalidConfig("matryoshka", f"the task is {task}, not embed")
    if config.pooling != "auto" and sentence is not None:
        kinds = {module.kind for module in sentence.modules}
        num_modes = len(sentence.modes)
        if num_modes > 1 and not kinds <= {"normalize"}:
            reason = f"the model's modules read {num_modes} vectors side by side"
            raise InvalidConfig("pooling", reason)


def _load_embedder(
    encoder: LoadedEncoder,
    folder: Path,
    sentence: SentenceFolder | None,
    config: PoolingConfig,
) -> LoadedTasks:
    modes = _choose_modes(encoder, sentence, config)
    modules = load_modules(
        folder,
        _NORMALIZE if sentence is None else sentence.modules,
        width=encoder.hidden_size * len(modes),
        device=encoder.device,
    )
    limit = None if sentence is None else sentence.truncate_dim
    is_cut = limit is not None and limit < modules.width
    finish = Postprocess(normalizes=modules.normalizes, truncate_dim=limit)
    info = PoolingInfo(
        task="embed",
        tasks=("embed", "token_embed"),
        num_outputs=limit if limit is not None and is_cut else modules.width,
        matryoshka=_find_matryoshka(_find_config(folder, sentence), config),
        # A vector of length 1 is shorter after it has been cut.
        normalizes=modules.normalizes and not is_cut,
        type_ids=encoder.type_ids,
    )
    tokens = ModuleChain(
        modules=(), width=encoder.hidden_size, normalizes=modules.normalizes
    )
    return LoadedTasks(
        info=info,
        tasks={
            "embed": EmbedTexts(modes=modes, modules=modules, finish=finish),
            "token_embed": _make_token_embedder(tokens),
        },
    )


def _choose_modes(
    encoder: LoadedEncoder, sentence: SentenceFolder | None, config: PoolingConfig
) -> tuple[PoolingMode, ...]:
    if config.pooling != "auto":
        return (_MODES[config.pooling],)
    modes = sentence.modes if sentence is not None else ()
    return modes or (("lasttoken",) if encoder.is_causal else ("mean",))


def _load_token_embedder(
    encoder: LoadedEncoder, folder: Path, sentence: SentenceFolder | None
) -> LoadedTasks:
    modules = _load_token_modules(encoder, folder, sentence)
    info = PoolingInfo(
        task="token_embed",
        tasks=("token_embed",),
        num_outputs=modules.width,
        normalizes=modules.normalizes,
        type_ids=encoder.type_ids,
    )
    return LoadedTasks(
        info=info,
        tasks={"token_embed": _make_token_embedder(modules)},
        averages_similarity=sentence is not None and sentence.averages_similarity,
    )


def _make_token_embedder(modules: ModuleChain) -> EmbedTokens:
    return EmbedTokens(
        modules=modules, finish=Postprocess(normalizes=modules.normalizes)
    )


def _load_token_modules(
    encoder: LoadedEncoder, folder: Path, sentence: SentenceFolder | None
) -> ModuleChain:
    listed = _NORMALIZE if sentence is None else sentence.modules
    if sentence is not None and sentence.modes:
        # The modules read pooled vectors; only a last normalization suits tokens, too.
        listed = tuple(module for module in listed[-1:] if module.kind == "normalize")
    width = encoder.hidden_size
    if encoder.projection is not None:
        width = encoder.projection.shape[0]
    modules = load_modules(folder, listed, width=width, device=encoder.device)
    if encoder.projection is None:
        return modules
    projection = Dense(weight=encoder.projection.float())
    return ModuleChain(
        modules=(projection, *modules.modules),
        width=modules.width,
        normalizes=modules.normalizes,
    )


def _load_classifier(encoder: LoadedEncoder) -> LoadedTasks:
    assert encoder.head is not None, "a classifier has a head"
    task: Task
    if encoder.task == "token_classify":
        task = ClassifyTokens(head=encoder.head, activation=encoder.activation)
    else:
        assert (
            encoder.head_mode is not None
        ), "the head of a text classifier reads one vector of a text"
        task = ClassifyTexts(
            head=encoder.head, mode=encoder.head_mode, activation=encoder.activation
        )
    info = PoolingInfo(
        task=encoder.task,
        tasks=(encoder.task,),
        num_outputs=len(encoder.labels),
        labels=encoder.labels,
        normalizes=False,
        type_ids=encoder.type_ids,
    )
    return LoadedTasks(info=info, tasks={encoder.task: task})


def _find_config(folder: Path, sentence: SentenceFolder | None) -> Path:
    return folder / (sentence.transformer_path if sentence else "") / "config.json"


def _find_matryoshka(path: Path, config: PoolingConfig) -> tuple[int, ...] | None:
    """Return the sizes to which vectors may be cut; () stands for all, None for none."""
    if config.matryoshka:
        return ()
    model = json.loads(path.read_bytes())
    sizes = model.get("matryoshka_dimensions")
    if sizes is None:
        return () if model.get("is_matryoshka") else None
    # In Python, true counts as 1; in JSON it is not a number.
    if not isinstance(sizes, list) or not all(
        type(size) is int and size > 0 for size in sizes
    ):
        reason = "config.json should have sizes as 'matryoshka_dimensions'"
        raise WeightsBroken(str(path.parent), reason)
    return tuple(sizes)
