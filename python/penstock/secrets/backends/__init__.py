"""Backends that fetch secrets from external secret managers. Client libraries are imported on first use."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any

from penstock.errors import UnavailableError
from penstock.extras import find_missing_extra
from penstock.fetch import Fetcher

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from penstock.settings import Settings

# Silences libraries that log every request.
for name in ("azure", "botocore"):
    logging.getLogger(name).setLevel(logging.WARNING)

BACKEND_MODULES = {"aws_sm": "aws", "azure_kv": "azure", "hashicorp_vault": "hashicorp"}
# Extras of the Python package that install the client library of a backend.
BACKEND_EXTRAS = {"aws_sm": "aws", "azure_kv": "azure"}


# Authentication methods that use the identity of the machine, by field of the auth config.
MACHINE_AUTH_METHODS = {
    "aws_auth_type": {"serviceRole", "assumedRole"},
    "azure_auth_mode": {"managed", "default"},
    "vault_auth_type": {"kubernetes"},
}


def machine_identity_field(auth: Mapping[str, Any]) -> str | None:
    """Returns the field that selects the machine's identity; `None` if the auth config uses stored credentials."""
    return next((field for field, methods in MACHINE_AUTH_METHODS.items() if auth.get(field) in methods), None)


async def load_backend(manager: str) -> ModuleType:
    """Imports the backend of a secret manager in a thread, because some client libraries take a second to import.
    Raises UnavailableError if the library is not installed.
    """
    extra = BACKEND_EXTRAS.get(manager)
    if extra and (subject := find_missing_extra(extra)):
        message = f"the secret manager {manager} {subject}"
        raise UnavailableError(message)
    return await asyncio.to_thread(importlib.import_module, f"penstock.secrets.backends.{BACKEND_MODULES[manager]}")


async def fetch(
    settings: Settings, manager: str, auth: Mapping[str, Any], path: str, *, is_operators: bool = False
) -> str:
    """Fetches the secret at a path. Raises UnavailableError, whose message contains no credential. With `is_operators`,
    the operator chose the URL, which may lead to any address; the URL of a tenant may not.
    """
    source = await load_backend(manager)
    fetcher = Fetcher(settings, is_operators=is_operators)
    seconds = settings.secrets.fetch_ms / 1000
    try:
        return await asyncio.wait_for(source.fetch(settings, fetcher, auth, path), seconds)
    except TimeoutError:
        raise UnavailableError(f"no answer within {settings.secrets.fetch_ms} ms") from None
    except UnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 - each library has its own exception classes, and all failures are handled alike
        raise UnavailableError(f"it cannot be fetched: {type(error).__name__}") from None
