"""Several models of one server, read from the command line, a file or a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import os
from pathlib import Path
import tomllib
from typing import Final

from ..errors import InvalidConfig, StartupError
from .options import build_config, list_options
from .whole import EngineConfig

# The key of a table besides the options of an engine.
_PRELOAD: Final = "preload"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One of several models.

    Args:
      names: for clients; answers have the first.
      preload: load it at the start.
      shared: the options that were not given for it alone. Those that have no effect on
        this model are left out.
    """

    names: tuple[str, ...]
    config: EngineConfig
    preload: bool = False
    shared: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        name: str,
        config: EngineConfig,
        *,
        preload: bool,
        shared: Iterable[str] = (),
    ) -> ServedModel:
        """Give a model its name, besides the names in its configuration."""
        others = config.model.served_model_name or ()
        names = tuple(dict.fromkeys((name, *others)))
        model = replace(config.model, served_model_name=names)
        return cls(
            names=names,
            config=replace(config, model=model),
            preload=preload,
            shared=frozenset(shared),
        )


def name_source(source: str) -> str:
    """Return the name of a model for clients: a hub id, or the last part of a path."""
    if source.startswith("pypi:"):
        return source.removeprefix("pypi:").partition("==")[0].strip()
    is_hub_id = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if is_hub_id and not os.path.exists(os.path.expanduser(source)):
        return source
    return Path(source).name.removesuffix(".gguf")


def list_models(
    sources: Sequence[str], values: Mapping[str, object]
) -> list[ServedModel]:
    """Return the models of the command line.

    Args:
      values: options of all models.

    Raises:
      InvalidConfig: two models have one name, or an option is wrong.
    """
    preload = bool(values.get(_PRELOAD))
    models = [
        _make(name_source(source), values, {"model": source}, preload)
        for source in sources
    ]
    return check_names(models, "model")


def read_models(path: str, values: Mapping[str, object]) -> list[ServedModel]:
    """Return the models of a TOML file, or of a folder.

    Args:
      values: options of all models; tables of the file win over them.

    Raises:
      InvalidConfig: the file cannot be read, or is wrong.
    """
    place = Path(path).expanduser()
    preload = bool(values.get(_PRELOAD))
    if place.is_dir():
        models = [
            _make(name_source(str(each)), values, {"model": str(each)}, preload)
            for each in _list_folder(place)
        ]
    else:
        models = [
            _read_table(path, name, table, values)
            for name, table in _read_tables(place, path)
        ]
    if not models:
        raise InvalidConfig("models", f"{path}: no model is there")
    return check_names(models, "models")


def _make(
    name: str, values: Mapping[str, object], own: Mapping[str, object], preload: bool
) -> ServedModel:
    """Make a model from the options of all models, and from its own."""
    known = {option.name for option in list_options(EngineConfig)}
    shared = {key: value for key, value in values.items() if key in known - {*own}}
    config = build_config(EngineConfig, {**shared, **own})
    return ServedModel.of(name, config, preload=preload, shared=shared)


def _list_folder(folder: Path) -> Iterator[Path]:
    """Yield the models of a folder: folders with a config.json, and GGUF files."""
    for each in sorted(folder.iterdir()):
        if not each.name.startswith("."):
            file = each if each.suffix == ".gguf" else each / "config.json"
            if file.is_file():
                yield each


def _read_tables(place: Path, path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        tables = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidConfig.of_file("models", "read", path, error) from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            reason = f"{name} stands alone; write each option below a [NAME] of a model"
            raise InvalidConfig("models", f"{path}: {reason}")
        yield name, table


def _read_table(
    path: str, name: str, table: Mapping[str, object], values: Mapping[str, object]
) -> ServedModel:
    """Read one model of the file.

    Raises:
      InvalidConfig: it says in which table the mistake is.
    """
    try:
        if "model" not in table:
            raise StartupError("there is no key `model`")
        known = {option.name: option for option in list_options(EngineConfig)}
        own: dict[str, object] = {}
        for key, value in table.items():
            if isinstance(value, dict):
                raise StartupError(f"{key} is a table; write options without tables")
            if key == _PRELOAD:
                continue
            is_path = key == "model" or (key in known and known[key].is_path)
            if key == "adapter" and isinstance(value, list):
                value = [_find_adapter(path, each) for each in value]
            own[key] = _find_beside(path, value) if is_path else value
        # For the message about keys that are unknown.
        build_config(EngineConfig, own)
        preload = table.get(_PRELOAD, bool(values.get(_PRELOAD)))
        if not isinstance(preload, bool):
            raise StartupError(f"preload: {preload!r} is not true or false")
        return _make(name, values, own, preload)
    except StartupError as error:
        raise InvalidConfig("models", f"{path}: [{name!a}] {error}") from error


def _find_adapter(path: str, value: object) -> object:
    """Return NAME=PATH as it is seen from the file."""
    if not isinstance(value, str):
        return value
    name, equals, place = value.partition("=")
    return f"{name}{equals}{_find_beside(path, place)}"


def _find_beside(path: str, value: object) -> object:
    """Return a relative path as it is seen from the file, if it is one."""
    if not isinstance(value, str) or os.path.isabs(value):
        return value
    beside = Path(path).expanduser().parent / value
    is_path = value.startswith(("./", "../")) or value.endswith(".gguf")
    try:
        return str(beside) if is_path or beside.exists() else value
    # A template may stand in place of its file, and be too long for a path.
    except (OSError, ValueError):
        return value


def check_names(models: list[ServedModel], option: str) -> list[ServedModel]:
    """Return models whose names differ.

    Raises:
      InvalidConfig: two models have one name.
    """
    seen: dict[str, ServedModel] = {}
    for model in models:
        adapters = (name for name, _ in model.config.model.list_adapters())
        for name in (*model.names, *adapters):
            if name in seen:
                reason = f"two of them are called {name!r}"
                if option == "model":
                    reason += "; --models FILE gives names"
                raise InvalidConfig(option, reason)
            seen[name] = model
    return models
