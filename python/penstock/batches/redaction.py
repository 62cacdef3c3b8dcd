"""Redaction of credentials in what a batch's provider returns. Some providers repeat the credential that they
reject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import select

from penstock.engine import is_secret_field
from penstock.ids import MASK_TEXT
from penstock.store.tables import integrations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.secrets.references import SecretCache
    from penstock.secrets.vault import Vault

# Minimum length of a redacted secret. A shorter one could also be a part of an ordinary word.
MIN_SECRET_CHARS = 8
# Field with additional headers. Their names do not show which of them is a credential, so all values count as secret.
CUSTOM_HEADERS_FIELD = "custom-headers"
SLUG_HEADERS = ("x-gateway-virtual-key",)


class SecretRedactor:
    """Removes a set of secrets from responses."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Stores the secrets as plain text and as they are escaped in JSON."""
        long = [text for text in texts if len(text) >= MIN_SECRET_CHARS]
        spelled = {spelling for text in long for spelling in (text.encode(), msgspec.json.encode(text)[1:-1])}
        self._texts = sorted(spelled, key=len, reverse=True)

    def redact(self, content: bytes) -> bytes:
        """Returns the bytes with every secret replaced by dots."""
        for text in self._texts:
            content = content.replace(text, MASK_TEXT.encode())
        return content


def secrets_in_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """Yields the secrets among the headers that requests of a batch carry."""
    for name, value in headers.items():
        if name not in SLUG_HEADERS:
            yield from _iter_secrets(
                name, value.partition(" ")[2] if name == "authorization" and " " in value else value
            )


async def secrets_of_integration(
    connection: AsyncConnection, vault: Vault, secrets: SecretCache, integration_id: str
) -> list[str]:
    """Returns the secrets of an integration, from the store and from secret managers."""
    rows = await connection.execute(select(integrations).where(integrations.c.id == integration_id))
    row = rows.mappings().first()
    if row is None:
        return []
    sealed = [row[name] for name in ("sealed_key", "sealed_configurations") if row[name]]
    texts = [await vault.open(connection, item, row["id"]) for item in sealed]
    secret_values = secrets.export_values()
    references = [mapping["secret_reference_id"] for mapping in row["secret_mappings"]]
    texts += [secret_values[reference][1] for reference in references if reference in secret_values]
    return [text for item in texts for text in _iter_strings(item)]


def _iter_secrets(name: str, value: object) -> Iterator[str]:
    """Yields the strings of a field whose name marks it as secret, or of such fields nested in its value."""
    if is_secret_field(name) or CUSTOM_HEADERS_FIELD in name.replace("_", "-").lower():
        yield from _iter_strings(value)
    elif isinstance(read := _parse_if_json(value), dict):
        for inner, item in cast("dict[str, Any]", read).items():
            yield from _iter_secrets(inner, item)
    elif isinstance(read, list):
        for item in cast("list[Any]", read):
            yield from _iter_secrets(name, item)


def _iter_strings(value: object) -> Iterator[str]:
    """Yields all strings in a value. Strings that contain JSON are searched as well."""
    read = _parse_if_json(value)
    if isinstance(read, dict):
        for item in cast("dict[str, Any]", read).values():
            yield from _iter_strings(item)
    elif isinstance(read, list):
        for item in cast("list[Any]", read):
            yield from _iter_strings(item)
    if isinstance(value, str):
        yield value


def _parse_if_json(value: object) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
