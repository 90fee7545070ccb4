"""The certificate of a server that speaks TLS."""

from __future__ import annotations

from pathlib import Path
import ssl

import hypercorn.config

from ..config import BindConfig, check_plain_file
from ..errors import InvalidConfig


class TlsContext:
    """The context of all connections; later ones get a certificate read again.

    Args:
      config: has a certificate.

    Attributes:
      context: with hypercorn's choice of protocols and ciphers.

    Raises:
      InvalidConfig: the files cannot be used.
    """

    def __init__(self, config: BindConfig) -> None:
        self._config = config
        self.context = self._load()

    def reload(self) -> None:
        """Read the files again; after an error, the certificate stays as it was.

        Raises:
          InvalidConfig
        """
        # First into another context, because a wrong pair would leave half of it in this one.
        self._load()
        assert self._config.tls_certfile is not None, "the server has a certificate"
        self.context.load_cert_chain(
            self._config.tls_certfile, self._config.tls_keyfile
        )

    def _load(self) -> ssl.SSLContext:
        for path in (self._config.tls_certfile, self._config.tls_keyfile):
            if path is not None:
                check_plain_file("tls_certfile", Path(path))
        config = hypercorn.config.Config()
        config.certfile = self._config.tls_certfile
        config.keyfile = self._config.tls_keyfile
        # Without a password, OpenSSL would ask for it on the terminal.
        config.keyfile_password = ""
        try:
            context = config.create_ssl_context()
        except ssl.SSLError as error:
            reason = error.reason or "they are not PEM, or the key has a password"
            raise InvalidConfig(
                "tls_certfile", f"cannot use it with --tls-keyfile: {reason}"
            ) from None
        except OSError as error:
            raise InvalidConfig(
                "tls_certfile", f"cannot read it, or --tls-keyfile: {error.strerror}"
            ) from None
        assert context is not None, "there are a certificate and a key"
        return context
