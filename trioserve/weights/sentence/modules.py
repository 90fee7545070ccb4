"""Reads modules.json, the config.json of each module that it lists, and prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Literal, get_args

from ...errors import UnsupportedModel, WeightsBroken
from ...types.sentence import PoolingMode, SentenceModule
from .fields import Fields, read_fields, read_json

# The vectors that modules read and write: one of a text, or one of each token.
Level = Literal["sentence_embedding", "token_embeddings"]

# The packages of the supported classes. The path of a class changed with each version
# ("models.Dense", "models.Dense.Dense", "base.modules.dense.Dense"), its name did not.
_PACKAGES = ("sentence_transformers", "pylate")

# The first versions had a class for each kind of transformer.
_TRANSFORMERS = frozenset(
    "Transformer ALBERT BERT CamemBERT DistilBERT RoBERTa XLMRoBERTa XLNet".split()
)
_TAKEN = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout", "MultiVectorMask")

# In the order in which their vectors are put side by side. Source:
# sentence-transformers 6.2, sentence_transformer/modules/pooling.py.
_MODE_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODES: Mapping[str, PoolingMode] = {mode: mode for mode in get_args(PoolingMode)}

# The activation of a Dense whose file names none. Source: the same,
# base/modules/dense.py.
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of modules.json.

    Args:
      kind: the name of the class, without its package; "Transformer" for all such
        classes.
      type: the full name of the class.
      path: the module's folder, relative to the model's.
    """

    kind: str
    type: str
    path: str

    def read_config(self, folder: Path) -> Fields | None:
        return read_fields(folder, join(self.path, "config.json"))


def join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}" if path else name


def list_entries(folder: Path) -> list[Entry]:
    """Read modules.json, without modules that have no effect after the training.

    Raises:
      WeightsBroken: its form is wrong, or a path leads out of the folder.
      UnsupportedModel: a module is not supported.
    """
    lines = read_json(folder, "modules.json")
    if not isinstance(lines, list) or not lines:
        raise WeightsBroken(str(folder), "modules.json is not a list of modules")
    entries = [_read_entry(Fields(line, folder, "modules.json")) for line in lines]
    if entries[0].kind != "Transformer":
        raise refuse(entries[0], "the first module must be a Transformer")
    for entry in entries[1:]:
        if entry.kind == "Transformer":
            raise refuse(entry, "there can be one Transformer only")
    return [entry for entry in entries if entry.kind != "Dropout"]


def refuse(entry: Entry, reason: str) -> UnsupportedModel:
    return UnsupportedModel(entry.type, reason)


def _read_entry(fields: Fields) -> Entry:
    type = fields.text("type")
    path = fields.text("path")
    if type is None or path is None:
        raise fields.make_error("has a module without 'type' or 'path'")
    _check_inside(path, fields)
    name = type.rpartition(".")[2]
    kind = "Transformer" if name in _TRANSFORMERS else name
    if type.partition(".")[0] not in _PACKAGES or kind not in ("Transformer", *_TAKEN):
        raise UnsupportedModel(
            type,
            "of the modules of sentence-transformers and PyLate only Transformer, "
            f"{', '.join(_TAKEN[:-1])} and {_TAKEN[-1]} are run",
        )
    return Entry(kind=kind, type=type, path=path)


def _check_inside(path: str, fields: Fields) -> None:
    # A Windows path has both kinds of separators.
    parts = PureWindowsPath(path)
    if parts.anchor or ".." in parts.parts or "\0" in path:
        raise fields.make_error(f"names {path!r}, outside the folder")


def read_pooling(folder: Path, entry: Entry) -> tuple[tuple[PoolingMode, ...], bool]:
    """Return the modes of a Pooling module, and whether it pools prompts, too."""
    fields = entry.read_config(folder)
    if fields is None:
        name = join(entry.path, "config.json")
        raise WeightsBroken(
            str(folder), f"{name}, which modules.json needs, is missing"
        )
    pools_prompts = fields.flag("include_prompt")
    return _read_modes(fields), pools_prompts is not False


def _read_modes(fields: Fields) -> tuple[PoolingMode, ...]:
    # Of old and of new versions.
    if "pooling_mode" not in fields:
        modes = tuple(mode for flag, mode in _MODE_FLAGS.items() if fields.flag(flag))
        return modes or ("mean",)
    if fields.is_list("pooling_mode"):
        names = fields.texts("pooling_mode") or ()
    else:
        names = (fields.text("pooling_mode") or "",)
    unknown = [name for name in names if name not in _MODES]
    if unknown or not names:
        raise fields.make_error(f"has {unknown or 'nothing'} as 'pooling_mode'")
    return tuple(_MODES[name] for name in names)


def read_modules(
    folder: Path, entries: Sequence[Entry], level: Level
) -> tuple[SentenceModule, ...]:
    """Read the modules that process the vectors of texts, or of tokens."""
    modules = (_read_module(folder, entry, level) for entry in entries)
    return tuple(module for module in modules if module is not None)


def _read_module(folder: Path, entry: Entry, level: Level) -> SentenceModule | None:
    if entry.kind == "Dense":
        return _read_dense(folder, entry, level)
    if entry.kind == "Normalize":
        return _read_normalize(folder, entry, level)
    if entry.kind == "LayerNorm" and level == "sentence_embedding":
        return SentenceModule(kind="layer_norm", path=entry.path)
    raise refuse(entry, "no other module reads its output")


def _read_dense(folder: Path, entry: Entry, level: Level) -> SentenceModule:
    fields = entry.read_config(folder) or Fields({}, folder, entry.path)
    # Before version 5.4 files did not name the input of a Dense: it was the output of
    # the module before. PyLate's Dense reads tokens, whatever the file says.
    reads = fields.text("module_input_name") or level
    writes = fields.text("module_output_name") or reads
    is_pylate = entry.type.startswith("pylate.") and level == "token_embeddings"
    if (reads, writes) != (level, level) and not is_pylate:
        raise refuse(entry, f"it turns {reads} into {writes}, where {level} are read")
    return SentenceModule(
        kind="dense",
        path=entry.path,
        activation=fields.text("activation_function") or _DEFAULT_ACTIVATION,
        adds_input=fields.flag("use_residual") or False,
    )


def _read_normalize(folder: Path, entry: Entry, level: Level) -> SentenceModule | None:
    fields = entry.read_config(folder) or Fields({}, folder, entry.path)
    reads = fields.text("module_input_name") or "sentence_embedding"
    writes = fields.text("module_output_name") or reads
    if writes != reads:
        raise refuse(entry, f"it turns {reads} into {writes}")
    # If its input does not exist, the module has no effect, without an error.
    return SentenceModule(kind="normalize") if reads == level else None


def read_skipped_words(folder: Path, entries: Iterable[Entry]) -> tuple[str, ...]:
    """Read the words that have no vector in documents, from MultiVectorMasks."""
    words: list[str] = []
    for entry in entries:
        fields = entry.read_config(folder) or Fields({}, folder, entry.path)
        if fields.is_list("keep_only_token_ids"):
            raise refuse(entry, "documents of images are not taken")
        tasks = fields.texts("skiplist_tasks")
        mine = fields.texts("skiplist_words") or ()
        if mine and tasks not in (None, ("document",)):
            raise refuse(entry, "tokens are skipped in documents only")
        words += mine
    return tuple(words)


def read_prompts(config: Fields) -> tuple[dict[str, str], str | None]:
    """Return prompts by name, and the name of the one for texts without a kind.

    Args:
      config: config_sentence_transformers.json.

    Raises:
      WeightsBroken: a prompt is not text, or the default prompt is missing.
    """
    default = config.text("default_prompt_name")
    fields = config.object("prompts")
    names = sorted(fields.names()) if fields is not None else []
    if default is not None and default not in names:
        raise config.make_error(f"has no prompt {default!r}, its default")
    read = {name: fields.text(name) for name in names} if fields is not None else {}
    # A name with null as its text is a placeholder, and has no effect.
    texts = {name: text for name, text in read.items() if text is not None}
    return texts, default if default in texts else None
