"""Plug-ins are found by flag and entry point; other objects end the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools
from pathlib import Path
import re

import pytest

from trioserve.errors import InvalidConfig, PluginBroken, StartupError
from trioserve.startup.plugins import load_logits_processors

_NUMBERS = itertools.count()

PLUGIN = """
from trioserve import LogitsProcessor

class Good(LogitsProcessor):
    name = "good"

    def apply(self, logits, rows):
        pass

class Other(Good):
    name = "other"

class Holder:
    class Inner(Good):
        name = "inner"
"""

Write = Callable[[str], str]
Offer = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a module and gives its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        # The name is new each time, because Python does not read a module twice.
        name = f"plugin_module_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return a function that installs a distribution with plug-ins."""
    monkeypatch.syspath_prepend(tmp_path)

    def offer(*values: str, distribution: str = "some-plugins") -> None:
        folder = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        points = "\n".join(f"point{i} = {value}" for i, value in enumerate(values))
        (folder / "entry_points.txt").write_text(
            f"[trioserve.logits_processors]\n{points}\n"
        )

    return offer


def load_names(names: Sequence[str]) -> list[str]:
    return [found.name for found in load_logits_processors(names)]


def test_by_default_there_are_no_plug_ins() -> None:
    assert load_logits_processors(()) == ()


def test_a_class_is_loaded_by_its_module(write: Write) -> None:
    module = write(PLUGIN)
    names = [f"{module}:Other", f"{module}:Good", f"{module}:Holder.Inner"]
    assert load_names(names) == ["other", "good", "inner"]


def test_plug_ins_of_installed_distributions_are_loaded(
    write: Write, offer: Offer
) -> None:
    module = write(PLUGIN)
    offer(f"{module}:Other", f"{module}:Good")
    assert load_names([]) == ["good", "other"]


def test_plug_ins_of_the_flag_come_first_and_each_once(
    write: Write, offer: Offer
) -> None:
    module = write(PLUGIN)
    offer(f"{module}:Other", f"{module}:Good")
    offer(f"{module}:Good", distribution="again")
    assert load_names([f"{module}:Other", f"{module}:Other"]) == ["other", "good"]


@pytest.mark.parametrize(
    "name", ["", "module", "module:", ":Class", "a b:Class", "module:Class:x", "./m:C"]
)
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(repr(name))) as caught:
        load_logits_processors([name])
    assert str(caught.value).startswith("--logits-processor: ")
    assert "module:Class" in str(caught.value)


WRONG = {
    "Missing": ("", "cannot be imported: AttributeError: .*Missing"),
    "Number": ("Number = 5", "is not a subclass of trioserve.LogitsProcessor"),
    "Stranger": ("class Stranger: pass", "is not a subclass"),
    "Abstract": (
        "import trioserve\n"
        "class Abstract(trioserve.LogitsProcessor):\n"
        "    name = 'abstract'",
        "does not say how to apply",
    ),
    "Nameless": (
        "import trioserve\n"
        "class Nameless(trioserve.LogitsProcessor):\n"
        "    def apply(self, logits, rows): pass",
        "needs a `name`",
    ),
    "Broken": ("import no_such_module_at_all", "ModuleNotFoundError"),
    "Unreadable": ("class", "SyntaxError"),
    "Raises": ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
}


@pytest.mark.parametrize("attribute", WRONG)
def test_an_object_that_is_no_plug_in_is_explained(
    write: Write, attribute: str
) -> None:
    source, message = WRONG[attribute]
    name = f"{write(source)}:{attribute}"
    with pytest.raises(InvalidConfig, match=message) as caught:
        load_logits_processors([name])
    assert name in str(caught.value)


@pytest.mark.parametrize("attribute", WRONG)
def test_an_entry_point_that_is_no_plug_in_names_its_distribution(
    write: Write, offer: Offer, attribute: str
) -> None:
    source, message = WRONG[attribute]
    name = f"{write(source)}:{attribute}"
    offer(name)
    with pytest.raises(PluginBroken, match=message) as caught:
        load_logits_processors([])
    assert isinstance(caught.value, StartupError)
    assert str(caught.value).startswith(f"{name} of some-plugins ")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(InvalidConfig, match="no_such_module:X cannot be imported"):
        load_logits_processors(["no_such_module:X"])


@pytest.mark.parametrize("name", ["", "a b", "é", "a\n", "x" * 65, None, 5])
def test_a_plug_ins_name_is_visible_ascii(write: Write, name: object) -> None:
    module = write(PLUGIN + f"\nGood.name = {name!r}\n")
    with pytest.raises(InvalidConfig, match="1 to 64 visible ASCII"):
        load_logits_processors([f"{module}:Good"])


def test_two_plug_ins_cannot_have_one_name(write: Write, offer: Offer) -> None:
    first, second = write(PLUGIN), write(PLUGIN)
    offer(f"{second}:Good")
    with pytest.raises(
        InvalidConfig, match=f"{first}:Good and {second}:Good are both called 'good'"
    ):
        load_logits_processors([f"{first}:Good"])
