"""README is short, its markup is sound, and its links lead somewhere.

tests/docs/test_programs.py runs its programs.
"""

from __future__ import annotations

from email import message_from_bytes
from pathlib import Path
import re
import shutil
import subprocess
import sys

import docutils.core
import docutils.nodes
import docutils.utils
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.rst").read_text()


def test_the_markup_has_no_errors() -> None:
    docutils.core.publish_doctree(
        README, settings_overrides={"halt_level": 2, "report_level": 2}
    )


def test_it_is_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= 300


def test_each_page_is_linked() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.rst")} - {"index.rst"}
    assert {Path(link).name for link in list_links()} == pages


def list_links() -> list[str]:
    return re.findall(r"<(docs/[^>]+)>`_", README)


@pytest.mark.parametrize("link", sorted({*list_links()}))
def test_a_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).is_file()


def test_the_description_on_an_index_has_no_dead_link(tmp_path: Path) -> None:
    # A copy, because setuptools writes beside what it reads.
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.rst", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("__init__.py", "types/version.py", "kernels/native/flags.json"):
        place = tmp_path / "trioserve" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "trioserve" / name, place)
    program = (
        "from setuptools.build_meta import prepare_metadata_for_build_wheel as prepare;"
        "print(prepare('.'))"
    )
    built = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": ""},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    folder = tmp_path / built.stdout.splitlines()[-1]
    metadata = message_from_bytes((folder / "METADATA").read_bytes())
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert metadata["Description-Content-Type"] == "text/x-rst"
    tree = docutils.core.publish_doctree(
        text, settings_overrides={"halt_level": 2, "report_level": 2}
    )
    targets = [node.get("refuri") for node in tree.findall(docutils.nodes.reference)]
    assert all(each is None or re.match("https?://", each) for each in targets)
    assert all(f"``{link}``" in text for link in list_links())


def test_ci_begins_with_the_commands_that_run_the_tests() -> None:
    """Before it installs more, which would hide what these commands lack."""
    found = re.search(r"The tests::\n\n    pip (install .+) && pytest\n", README)
    assert found is not None
    script = (ROOT / ".ci" / "run").read_text()
    first, second = re.findall(r"^(?:pip|pytest) .+", script, re.MULTILINE)[:2]
    assert first == f"pip {found[1]}".replace("install", "install --quiet")
    assert re.fullmatch(r"pytest --list-skipped=\S+", second)
