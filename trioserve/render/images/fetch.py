"""Fetches images from the web: allowed hosts, few redirects, bounded size and time.

One parser reads a URL, and the connection is made from its result. So no second parser
can find another host in the same URL. Proxies of the system, cookies and credentials
are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
import io
import ipaddress
import logging
import re

import httpcore2
import httpx2
import trio

from ...config import MediaConfig, parse_bytes
from ...errors import InvalidConfig, InvalidParameter, escape
from .address import IPAddress
from .connect import CheckedBackend

logger = logging.getLogger(__name__)

_MAX_URL_CHARACTERS = 8192
_MAX_REDIRECTS = 3
_REDIRECTS = {301, 302, 303, 307, 308}

# Some parsers read a backslash as a slash, others drop control characters and spaces.
# URLs of images need none of these characters.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\]")

# A host's name, or an IPv6 address in brackets, without other parts of a URL.
_HOST = re.compile(r"[^\s/@:?#%\\\[\]*]+|\[[0-9a-fA-F:.]+\]")

# Errors of the network between two hosts; OSError includes errors of TLS.
_NETWORK_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    OSError,
)


class ImageFetcher:
    """Fetches over http and https, from the hosts in the server's configuration.

    All ports of an allowed host are allowed.

    Args:
      is_allowed_address: whether a host may have an address.

    Raises:
      InvalidConfig: an allowed domain is not the name of a host.
    """

    def __init__(
        self, config: MediaConfig, *, is_allowed_address: Callable[[IPAddress], bool]
    ) -> None:
        self._hosts = frozenset(map(_read_domain, config.allowed_media_domains))
        self._seconds = config.media_timeout
        self._max_bytes = parse_bytes("max_image_bytes", config.max_image_bytes)
        self._backend = CheckedBackend(is_allowed_address)
        # Made once, because it reads all certificates of the system.
        self._ssl_context = httpcore2.default_ssl_context()

    async def fetch(self, text: str, *, param: str) -> bytes:
        """Fetch one image.

        Raises:
          InvalidParameter: the URL is not allowed, or the image does not arrive in
            time.
        """
        url = self._check(_parse(text, param), param)
        with trio.move_on_after(self._seconds):
            try:
                return await self._follow(url, param)
            except _NETWORK_ERRORS as error:
                # The client does not get the error, which may describe the network.
                logger.debug("an image cannot be fetched: %s", escape(repr(error)))
                raise InvalidParameter(param, "cannot be fetched") from None
        raise InvalidParameter(param, f"took longer than {self._seconds:g} s to fetch")

    async def _follow(self, url: httpx2.URL, param: str) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            found = await self._get(url, param)
            if isinstance(found, bytes):
                return found
            url = self._check(_join(url, found, param), param)
        raise InvalidParameter(param, f"redirects more than {_MAX_REDIRECTS} times")

    def _check(self, url: httpx2.URL, param: str) -> httpx2.URL:
        if url.scheme not in ("http", "https"):
            raise InvalidParameter(param, "leads to something other than http or https")
        if url.userinfo:
            raise InvalidParameter(param, "must not contain a user name or password")
        if url.port is not None and not 0 < url.port < 2**16:
            raise InvalidParameter(param, "is not a URL")
        if _normalise_host(url) not in self._hosts:
            raise InvalidParameter(
                param, "is at a host from which this server does not fetch images"
            )
        return url

    async def _get(self, url: httpx2.URL, param: str) -> bytes | str:
        """Send one request; return the body, or the location of a redirect."""
        host = _normalise_host(url)
        target = httpcore2.URL(
            scheme=url.raw_scheme, host=host, port=url.port, target=url.raw_path
        )
        connection = httpcore2.AsyncHTTPConnection(
            target.origin, ssl_context=self._ssl_context, network_backend=self._backend
        )
        async with (
            connection,
            connection.stream(
                "GET",
                target,
                headers=[
                    ("Host", url.netloc),
                    ("Accept", "image/*"),
                    # A compressed body could become arbitrarily large.
                    ("Accept-Encoding", "identity"),
                    ("User-Agent", "trioserve"),
                ],
                extensions={"timeout": {"connect": self._seconds}},
            ) as response,
        ):
            return await self._read(response, param)

    async def _read(self, response: httpcore2.Response, param: str) -> bytes | str:
        headers = {name.lower(): value for name, value in response.headers}
        if response.status in _REDIRECTS and b"location" in headers:
            # RFC 9110 demands ASCII. Browsers accept UTF-8, so some servers send it.
            return headers[b"location"].decode(errors="replace")
        if response.status != 200:
            raise InvalidParameter(
                param, f"cannot be fetched: its host answers {response.status}"
            )
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidParameter(param, "is sent in a content encoding")
        length = headers.get(b"content-length", b"0")
        if int(length) > self._max_bytes:
            raise _too_large(param, self._max_bytes)
        return await self._read_body(response, param)

    async def _read_body(self, response: httpcore2.Response, param: str) -> bytes:
        body = io.BytesIO()
        async with aclosing(response.aiter_stream()) as chunks:
            async for chunk in chunks:
                # Checked again, because the headers may be wrong.
                if body.tell() + len(chunk) > self._max_bytes:
                    raise _too_large(param, self._max_bytes)
                body.write(chunk)
        # Makes no copy, because nothing else holds the buffer.
        return body.getvalue()


def _too_large(param: str, max_bytes: int) -> InvalidParameter:
    return InvalidParameter(param, f"is an image of more than {max_bytes} bytes")


def _parse(text: str, param: str) -> httpx2.URL:
    if len(text) > _MAX_URL_CHARACTERS or _AMBIGUOUS.search(text):
        raise InvalidParameter(param, "is not a URL")
    try:
        return httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError):
        raise InvalidParameter(param, "is not a URL") from None


def _join(url: httpx2.URL, location: str, param: str) -> httpx2.URL:
    if len(location) > _MAX_URL_CHARACTERS or _AMBIGUOUS.search(location):
        raise InvalidParameter(param, "is redirected to something that is not a URL")
    try:
        return url.join(location)
    except (httpx2.InvalidURL, ValueError):
        raise InvalidParameter(
            param, "is redirected to something that is not a URL"
        ) from None


def _normalise_host(url: httpx2.URL) -> str:
    """Return the host in lower-case ASCII (IDNA), without the dot of the DNS root."""
    host = url.raw_host.decode("ascii").removesuffix(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _read_domain(domain: str) -> str:
    try:
        if _HOST.fullmatch(domain):
            return _normalise_host(httpx2.URL(f"http://{domain}/"))
    except (httpx2.InvalidURL, ValueError):
        pass
    raise InvalidConfig(
        "allowed_media_domains", f"{domain!r} is not the name of a host"
    )
