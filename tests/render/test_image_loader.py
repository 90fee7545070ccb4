"""Images by data, file and web URLs: accepted ones, refused ones, and the errors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import blake2b
import io
import os
from pathlib import Path
import random

from PIL import Image
import pytest
import trio

from trioserve.config import MediaConfig
from trioserve.errors import InvalidConfig, InvalidParameter
from trioserve.render import Base64Image
from trioserve.render.images.address import IPAddress
from trioserve.render.images.loader import ImageLoader
from trioserve.types.prompt import KEY_BYTES

Url = str | bytes | memoryview


def make_png(size: tuple[int, int] = (3, 2)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, "PNG")
    return file.getvalue()


PNG = make_png()

OUTSIDE = "is not a file that this server reads"


def data_url(data: bytes = PNG, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(data).decode()


def make_loader(**changes: object) -> ImageLoader:
    return ImageLoader(replace(MediaConfig(), **changes))


async def load(url: Url, **changes: object) -> bytes:
    return (await make_loader(**changes).load(url, param="messages[0]")).data


async def refuse(url: Url, **changes: object) -> str:
    with pytest.raises(InvalidParameter) as refused:
        await load(url, **changes)
    assert refused.value.param == "messages[0]"
    return str(refused.value)


AS_THEY_COME: list[Callable[[str], Url]] = [
    str,
    str.encode,
    lambda url: memoryview(url.encode()),
]


@pytest.mark.parametrize("spell", AS_THEY_COME)
async def test_a_data_url_is_decoded_and_known_by_its_bytes(
    spell: Callable[[str], Url],
) -> None:
    loader = make_loader()
    encoded = await loader.load(spell(data_url()), param="x")
    assert encoded.data == PNG
    assert encoded.digest == blake2b(PNG, digest_size=KEY_BYTES).digest()
    image = await loader.decode(encoded, param="x")
    assert (image.mode, image.size) == ("RGB", (3, 2))


async def test_base64_may_come_without_the_head_of_a_url() -> None:
    loader = make_loader()
    image = Base64Image(data=memoryview(base64.b64encode(PNG)))
    assert await loader.load(image, param="x") == await loader.load(
        data_url(), param="x"
    )


async def test_a_long_data_url_is_decoded_in_pieces() -> None:
    """A piece is 2**20 characters, 3 * 2**18 bytes."""
    for surplus in (-1, 0, 1, 2, 2**19):
        for spell in AS_THEY_COME:
            data = random.Random(1).randbytes(3 * 2**19 + surplus)
            assert await load(spell(data_url(data))) == data, surplus


@pytest.mark.parametrize(
    "head",
    [
        "data:image/svg+xml;base64,",
        "DATA:Image/PNG;BASE64,",
        "data:image/png;charset=utf-8;base64,",
        "data:image/x-icon;base64,",
    ],
)
async def test_the_bytes_and_not_the_declared_type_decide_the_format(head: str) -> None:
    assert await load(data_url(head=head)) == PNG


async def test_other_data_urls_are_refused() -> None:
    for head in (
        "data:,",
        "data:base64,",
        "data:;base64,",
        "data:image/png,",
        "data:image/png;base64",
        "data:text/plain;base64,",
        "data:application/pdf;base64,",
        "data:image/;base64,",
        "data:image/png;base64;x=y,",
        "data:image/png; base64,",
        " data:image/png;base64,",
        "data:image/" + "x" * 300 + ";base64,",
    ):
        text = await refuse(data_url(head=head))
        assert "data:image/png;base64" in text or "must be a data" in text, head


async def test_text_that_is_not_base64_is_refused() -> None:
    for characters in (
        *("A", "AA", "AAA", "AAAA=", "A===", "AA==AAAA", "AAA\n", "AA AA", "AAA%3D"),
        *("AA-_", "é" * 4, "\ud800AAA", "\x00AAA", "A" * 2**20 + "AAA"),
        # Padding stands at the end of a piece.
        "A" * (2**20 - 2) + "==" + "AAAA",
    ):
        assert "base64" in await refuse("data:image/png;base64," + characters)


async def test_an_image_may_be_as_long_as_the_limit_and_no_longer() -> None:
    for size in (97, 98, 99, 100):
        assert len(await load(data_url(bytes(size)), max_image_bytes="100")) == size
    for size in (101, 102, 103, 10_000):
        text = await refuse(data_url(bytes(size)), max_image_bytes="100")
        assert "more than 100 bytes" in text


async def test_other_urls_are_refused() -> None:
    for url in (
        *("", ":", "image.png", "/etc/passwd", "//host/a.png", "ftp://host/a.png"),
        *("gopher://host", "javascript:alert(1)", "blob:x", "\x00", "é:x", "\ud800:"),
        *(b"\xff\xfe", b"", memoryview(b"ssh://x")),
    ):
        assert "must be a data, http, https or file URL" in await refuse(url)


async def test_by_default_nothing_is_fetched_or_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    assert "reads no image files" in await refuse((tmp_path / "a.png").as_uri())
    for scheme in ("http", "https", "HTTP"):
        assert "fetches no images" in await refuse(f"{scheme}://127.0.0.1/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that may be read, with files in it and beside it."""
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "images" / "more").mkdir(parents=True)
    (tmp_path / "images" / "more" / "a b ü.png").write_bytes(PNG)
    (tmp_path / "images" / "a.png").write_bytes(PNG)
    # Another folder, whose name begins with the allowed one's.
    (tmp_path / "images2").mkdir()
    (tmp_path / "images2" / "a.png").write_bytes(PNG)
    return tmp_path / "images"


async def test_a_file_below_the_folder_is_read(folder: Path) -> None:
    for path in (
        "a.png",
        "more/a%20b%20%C3%BC.png",
        "more/a b ü.png",
        "more/../a.png",
        "%61.png",
    ):
        for prefix in ("file://", "file://localhost", "file:", "FILE://"):
            url = f"{prefix}{folder}/{path}"
            for spell in AS_THEY_COME:
                found = await load(spell(url), allowed_local_media_path=str(folder))
                assert found == PNG, url


async def test_no_other_file_is_read_or_revealed(folder: Path) -> None:
    (folder / "link-to-file").symlink_to(folder.parent / "secret.png")
    (folder / "link-to-folder").symlink_to(folder.parent)
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    for path in (
        *("../secret.png", "../missing.png", "../images2/a.png", "..", "../.."),
        *("%2e%2e/secret.png", "..%2fsecret.png", "more/../../secret.png"),
        *("", ".", "more", "missing.png", "a.png/x", "a.png%00", "\x00"),
        *("a.png?x", "a.png#x", "%ff.png", "a" * 5000, "../../../../../../dev/zero"),
        *("link-to-file", "link-to-folder/secret.png", "loop", "pipe", "socket"),
    ):
        urls = [f"file://{folder}/{path}"]
        if path == "..":
            # Files of other hosts.
            starts = ("file://host", "file://127.0.0.1", "file:.", "file:///etc/")
            urls += [f"{start}{folder}/a.png" for start in starts]
        with trio.fail_after(30):
            for url in urls:
                text = await refuse(url, allowed_local_media_path=str(folder))
                assert text == f"messages[0]: {OUTSIDE}", path


async def test_links_within_the_folder_and_to_it_are_followed(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "a.png")
    link = folder.parent / "link"
    link.symlink_to(folder)
    for start in (link, folder):
        for name in ("a.png", "link"):
            url = f"file://{start}/{name}"
            assert await load(url, allowed_local_media_path=str(link)) == PNG


async def test_a_file_may_be_as_long_as_the_limit_and_no_longer(folder: Path) -> None:
    with (folder / "sparse.png").open("wb") as file:
        file.truncate(2**40)
    changes = {
        "allowed_local_media_path": str(folder),
        "max_image_bytes": str(len(PNG)),
    }
    assert await load(f"file://{folder}/a.png", **changes) == PNG
    assert "more than" in await refuse(f"file://{folder}/sparse.png", **changes)


@pytest.mark.parametrize("name", ["missing", "a.png"])
def test_an_allowed_path_that_is_no_folder_ends_the_start(
    folder: Path, name: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        make_loader(allowed_local_media_path=str(folder / name))
    assert refused.value.field == "allowed_local_media_path"


async def test_a_file_that_is_no_image_is_refused_when_it_is_decoded() -> None:
    loader = make_loader(max_image_pixels=6)
    for data, reason in (
        (b"hello", "is not a PNG"),
        (PNG[:-30], "can be decoded"),
        (make_png((7, 1)), "7 x 1 pixels"),
    ):
        encoded = await loader.load(data_url(data), param="x")
        with pytest.raises(InvalidParameter, match=reason):
            await loader.decode(encoded, param="x")
    assert loader.workers.statistics().busy == 0


def is_loopback(address: IPAddress) -> bool:
    return address.is_loopback


async def test_private_addresses_are_not_contacted_by_default() -> None:
    with trio.fail_after(30):
        text = await refuse("http://127.0.0.1:1/", allowed_media_domains=("127.0.0.1",))
    assert text == "messages[0]: cannot be fetched"


async def test_slow_hosts_keep_others_fetches_waiting_and_nothing_else(
    nursery: trio.Nursery,
) -> None:
    num_clients = 0
    two_came, may_answer = trio.Event(), trio.Event()

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal num_clients
        num_clients += 1
        if num_clients == 2:
            two_came.set()
        await stream.receive_some()
        await may_answer.wait()
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n" + PNG)

    (listener,) = await nursery.start(
        partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
    )
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
    config = MediaConfig(allowed_media_domains=("127.0.0.1",), media_num_connections=2)
    loader = ImageLoader(config, is_allowed_address=is_loopback)
    loaded: list[bytes] = []

    async def fetch(url: str) -> None:
        loaded.append((await loader.load(url, param="x")).data)

    with trio.fail_after(30):
        async with trio.open_nursery() as requests:
            for _ in range(2):
                requests.start_soon(fetch, url)
            await two_came.wait()
            requests.start_soon(fetch, url)
            # Images that need no connection do not wait.
            assert (await loader.load(data_url(), param="x")).data == PNG
            await trio.testing.wait_all_tasks_blocked()
            assert (num_clients, loaded) == (2, [])
            may_answer.set()
    assert loaded == [PNG] * 3
    assert num_clients == 3
    assert loader.workers.statistics().busy == 0
    nursery.cancel_scope.cancel()


async def test_a_cancelled_fetch_gives_its_place_back(nursery: trio.Nursery) -> None:
    async def say_nothing(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        has_request.set()
        await stream.receive_some()
        left.set()

    has_request, left = trio.Event(), trio.Event()
    (listener,) = await nursery.start(
        partial(trio.serve_tcp, say_nothing, 0, host="127.0.0.1")
    )
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
    config = MediaConfig(allowed_media_domains=("127.0.0.1",), media_num_connections=1)
    loader = ImageLoader(config, is_allowed_address=is_loopback)
    with trio.fail_after(30):
        async with trio.open_nursery() as requests:
            requests.start_soon(partial(loader.load, url, param="x"))
            await has_request.wait()
            requests.cancel_scope.cancel()
        await left.wait()
        assert (await loader.load(data_url(), param="x")).data == PNG
    assert loader.workers.statistics().busy == 0
    nursery.cancel_scope.cancel()
