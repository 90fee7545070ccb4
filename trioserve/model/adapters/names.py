"""The names of modules, in the files of adapters and in the model."""

from __future__ import annotations

from collections.abc import Collection

# A text model stands under one of these names in models that also read images; transformers
# has moved it more than once.
_HOMES = (
    *("model.language_model.model.", "language_model.model.", "model.language_model."),
    *("model.text_model.", "language_model.", "model.", ""),
)


class ModuleNames:
    """Finds modules of a model by the names that an adapter's training gave them.

    Args:
      names: of the model's modules.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        short: dict[str, list[str]] = {}
        for name in names:
            short.setdefault(shorten(name), []).append(name)
        # Two modules with one short name could be mistaken for each other.
        self._by_short = {
            key: found[0] for key, found in short.items() if len(found) == 1
        }

    def find(self, name: str) -> str | None:
        """Return the model's name of a module; None if it has no such module."""
        if name in self._names:
            return name
        short = shorten(name)
        # transformers has moved Mixtral's experts.
        moved = short.replace(".block_sparse_moe.", ".mlp.")
        return self._by_short.get(short) or self._by_short.get(moved)


def shorten(name: str) -> str:
    """Take the home of the text model from a name."""
    return name.removeprefix(next(each for each in _HOMES if name.startswith(each)))
