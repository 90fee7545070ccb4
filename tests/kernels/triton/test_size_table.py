"""Sizes of programs are measured once, within their time, and kept; nothing there fails a start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trioserve.kernels.triton.size_table import SizeTable
from trioserve.kernels.triton.widths import AttendSize

SIZES = [AttendSize(32, 4), AttendSize(64, 2), AttendSize(128, 4, 2)]
SECONDS = dict(zip(SIZES, (3e-3, 1e-3, 2e-3)))


class Device:
    """A clock, and kernels that take a second to compile and measure."""

    def __init__(self) -> None:
        self.now = 0.0
        self.measured: list[AttendSize] = []
        self.broken: set[AttendSize] = set()

    def clock(self) -> float:
        return self.now

    def measure(self, size: AttendSize) -> float:
        self.now += 1.0
        self.measured.append(size)
        if size in self.broken:
            raise RuntimeError("out of resource: shared memory")
        return SECONDS[size]


def choose(
    folder: Path, device: Device, *, seconds: float = 5.0, facts: str = "a card"
) -> AttendSize:
    table = SizeTable(folder, seconds, device.clock)
    return table.choose(facts, SIZES, device.measure)


def test_the_fastest_is_measured_once_and_kept(tmp_path: Path) -> None:
    device, folder = Device(), tmp_path / "a" / "b"
    assert choose(folder, device) == choose(folder, device) == SIZES[1]
    assert device.measured == SIZES
    # Another card, version or layer.
    assert choose(folder, device, facts="another card") == SIZES[1]
    assert device.measured == [*SIZES, *SIZES]


def test_nothing_is_measured_without_a_choice(tmp_path: Path) -> None:
    device = Device()
    table = SizeTable(tmp_path, clock=device.clock)
    assert table.choose("a card", SIZES[:1], device.measure) == SIZES[0]
    assert not device.measured and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("seconds", "found"), [(0.0, SIZES[0]), (1.5, SIZES[0]), (2.5, SIZES[1])]
)
def test_time_ends_and_the_next_start_goes_on(
    tmp_path: Path, seconds: float, found: AttendSize
) -> None:
    device = Device()
    assert choose(tmp_path, device, seconds=seconds) == found
    assert device.now <= seconds
    assert not list(tmp_path.iterdir())
    assert choose(tmp_path, device) == SIZES[1]
    assert len(list(tmp_path.iterdir())) == 1


def test_all_choices_of_a_process_share_its_time(tmp_path: Path) -> None:
    device = Device()
    table = SizeTable(tmp_path, 4.5, device.clock)
    assert table.choose("one", SIZES, device.measure) == SIZES[1]
    assert table.choose("other", SIZES[::-1], device.measure) == SIZES[2]
    assert device.now == 4.0


def test_a_size_that_the_device_cannot_have_is_passed_over(tmp_path: Path) -> None:
    device = Device()
    device.broken = {SIZES[1]}
    assert choose(tmp_path, device) == choose(tmp_path, device) == SIZES[2]
    assert device.measured == SIZES


def test_without_measurements_there_is_one_line_and_the_first_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device()
    device.broken = {*SIZES}
    table = SizeTable(tmp_path, clock=device.clock)
    for facts in ("one", "other"):
        assert table.choose(facts, SIZES, device.measure) == SIZES[0]
    assert device.measured == SIZES[:1]
    (record,) = caplog.records
    assert "sizes of attention are not measured: out of resource" in record.message


@pytest.mark.parametrize(
    "text", ["", "[]", '{"size": 3}', '{"size": [7, 4, 3]}', '{"size": [1, 2, 3, 4]}']
)
def test_a_damaged_file_is_replaced(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device()
    choose(tmp_path, device)
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert choose(tmp_path, device) == choose(tmp_path, device) == SIZES[1]
    assert device.measured == [*SIZES, *SIZES]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_folder_that_cannot_be_written_changes_no_choice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert choose(tmp_path / "file" / "folder", Device()) == SIZES[1]
    (record,) = caplog.records
    assert "cannot be kept" in record.message


def test_processes_may_measure_at_once(tmp_path: Path) -> None:
    def run(_: int) -> AttendSize:
        return choose(tmp_path, Device())

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(run, range(32))) == {SIZES[1]}
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".json"
