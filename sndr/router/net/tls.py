"""TLS: the listeners' certificate, which can be exchanged while they listen, and the context for model servers."""

from __future__ import annotations

import ssl
from typing import Final

from sndr.errors import InputError

__all__ = ["Certificate", "client_context"]

_PROTOCOLS: Final = ["http/1.1"]


def client_context() -> ssl.SSLContext:
    """Certificate and name of a model server are verified, against the system's authorities or `SSL_CERT_FILE`."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(_PROTOCOLS)
    return context


class Certificate:
    """A certificate chain and its key, read from two files.

    Attributes:
        context: What listeners are made with; handshakes after a `reload` use what that has read.
    """

    def __init__(self, cert_path: str, key_path: str) -> None:
        """Read both files.

        Raises:
            InputError: `tls_unusable`; says which file cannot be read, or that the two do not fit.
        """
        self._cert_path = cert_path
        self._key_path = key_path
        self._current = self.context = self._read()

    def reload(self) -> None:
        """Read both files again; connections that exist go on with what they have.

        Raises:
            InputError: `tls_unusable`; the certificate in use stays in use.
        """
        self._current = self._read()
        # Both files were judged in a context of their own, so that a bad pair cannot leave half of itself behind.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        del name, context
        connection.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(_PROTOCOLS)
        for key, path in (("tls_cert", self._cert_path), ("tls_key", self._key_path)):
            try:
                with open(path, "rb") as file:
                    file.read(1)
            except OSError as error:
                raise InputError("tls_unusable", f"server.{key}: {path}: {error.strerror}") from error
        try:
            # A key that asks for a passphrase must fail, not wait for somebody at a terminal.
            context.load_cert_chain(self._cert_path, self._key_path, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None)
            said = {
                "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
                "NO_START_LINE": "one of the files holds no PEM of its kind",
            }.get(str(reason), "not a PEM certificate chain and its key without a passphrase")
            raise InputError(
                "tls_unusable", f"server.tls_cert and server.tls_key: {self._cert_path}, {self._key_path}: {said}"
            ) from error
        return context
