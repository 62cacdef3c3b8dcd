"""Encrypted values of LiteLLM's database. A wrong salt key ends the import before anything is written."""

from __future__ import annotations

import base64
import binascii
import hashlib
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

GCM_PREFIX = "v2:gcm:"
NONCE_BYTES, TAG_BYTES = 12, 16
# Nonce and authenticator of NaCl's SecretBox, and at least one character.
MIN_BOX_BYTES = 24 + 16 + 1


class LegacyEncryptionError(Exception):
    """A value is encrypted with SecretBox, and PyNaCl is not installed."""


class Decryptor:
    """Decrypts the values of one database with its salt key: `LITELLM_SALT_KEY`, or else the master key."""

    def __init__(self, salt_key: str | None, variable: str | None) -> None:
        """Stores the salt key and the name of its environment variable."""
        self._key = hashlib.sha256(salt_key.encode()).digest() if salt_key else None
        self._variable = variable
        self._open_box: Callable[[bytes], bytes] | None = None
        if self._key and find_spec("nacl"):
            # The type is `Any`, because the project does not install types for PyNaCl.
            box: Any = import_module("nacl.secret").SecretBox(self._key)
            self._open_box = box.decrypt

    def decrypt_table(self, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the parameters of a model or a credential in clear. Raises `LegacyEncryptionError` if they need
        PyNaCl, and `SettingsError` if the salt key is wrong.
        """
        return {name: self._decrypt(value) if isinstance(value, str) else value for name, value in values.items()}

    def _decrypt(self, value: str) -> str:
        if value.startswith(GCM_PREFIX):
            return self._decrypt_gcm(value.removeprefix(GCM_PREFIX))
        sealed = _decode(value)
        # A value that is not encrypted: older versions of LiteLLM stored clear text.
        if len(sealed) < MIN_BOX_BYTES or not _looks_random(value):
            return value
        self._require_key()
        if self._open_box is None:
            raise LegacyEncryptionError
        try:
            return self._open_box(sealed).decode()
        # The exceptions of PyNaCl have no other common base class.
        except Exception:  # noqa: BLE001 - see the comment above
            raise self._wrong_key() from None

    def _decrypt_gcm(self, text: str) -> str:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - needed only to import from a database
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - loads slowly

        key = self._require_key()
        sealed = _decode(text)
        if len(sealed) < NONCE_BYTES + TAG_BYTES:
            raise self._wrong_key()
        try:
            return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None).decode()
        except (InvalidTag, UnicodeDecodeError):
            raise self._wrong_key() from None

    def _require_key(self) -> bytes:
        if self._key is None:
            message = (
                "the database has encrypted credentials; give --salt-key-env with the name of an environment variable "
                "that holds LITELLM_SALT_KEY, or else the master key"
            )
            raise SettingsError(message)
        return self._key

    def _wrong_key(self) -> SettingsError:
        return SettingsError(
            f"the salt key in {self._variable} does not decrypt the credentials of the database; it must be "
            "LITELLM_SALT_KEY of that LiteLLM, or its master key if it has none; nothing was imported"
        )


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return b""


def _looks_random(text: str) -> bool:
    """Returns true for the encoding of random bytes, and false for names and keys in clear. Of random encodings with 55
    characters, about one in 10,000 has no digit; with 100 characters, about one in 20 million.
    """
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(map(kind, text)) for kind in kinds) and not text.startswith(("sk-", "sk_"))
