"""Validation of the certificate of the gateway. TLS is used if both files are set."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from penstock.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.settings import Server

# Maximum size of a certificate or key file. A certificate chain has a few kilobytes.
MAX_PEM_BYTES = 1024 * 1024


def validate_server_tls(server: Server) -> Iterator[Problem]:
    """Yields the validation errors of the certificate, its key, and the URL that clients use."""
    names = {"tls_certificate_file": server.tls_certificate_file, "tls_key_file": server.tls_key_file}
    missing = [name for name, file in names.items() if not file]
    if len(missing) == 1:
        (configured,) = names.keys() - set(missing)
        yield Problem(f"server.{missing[0]}", f"is needed together with server.{configured}")
    if server.public_url.startswith("http:") and not missing:
        message = f"{server.public_url!r} is not allowed with a certificate: expected a URL with https://"
        yield Problem("server.public_url", message)
    items = [item for name, file in names.items() if file for item in _check_file(f"server.{name}", file)]
    yield from items
    if not missing and not items and (subject := describe_pair_error(*names.values())):
        yield Problem("server.tls_certificate_file", subject)


def describe_pair_error(certificate_file: str, key_file: str) -> str | None:
    """Returns the reason why a certificate and a key cannot be used together; `None` if they can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password callback, OpenSSL would prompt for a password at the terminal.
        context.load_cert_chain(certificate_file, key_file, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"the certificate in {certificate_file!r} does not belong to the key in {key_file!r}"
        return (
            f"{certificate_file!r} and {key_file!r} cannot be used ({error.reason or error}): expected the chain of "
            "certificates and its key in PEM format, without a passphrase"
        )
    except OSError as error:
        return f"the certificate or its key cannot be read: {error.strerror or error}"
    return None


def _check_file(path: str, file: str) -> Iterator[Problem]:
    try:
        with open(file, "rb") as opened:
            if os.fstat(opened.fileno()).st_size > MAX_PEM_BYTES:
                yield Problem(path, f"{file!r} is too large: expected at most {MAX_PEM_BYTES} bytes")
    except OSError as error:
        yield Problem(path, f"{file!r} cannot be read: {error.strerror or error}")
