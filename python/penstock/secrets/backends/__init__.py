"""Where secrets are kept that are not ours: each kind of place is asked by its own library, loaded when it is first needed."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any

from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from penstock.settings import Settings

# They tell of every request.
for name in ("azure", "botocore"):
    logging.getLogger(name).setLevel(logging.WARNING)

BACKEND_MODULES = {"aws_sm": "aws", "azure_kv": "azure", "hashicorp_vault": "hashicorp"}


# Ways of signing in as the machine itself.
MACHINE_AUTH_METHODS = {
    "aws_auth_type": {"serviceRole", "assumedRole"},
    "azure_auth_mode": {"managed", "default"},
    "vault_auth_type": {"kubernetes"},
}


def machine_identity_field(auth: Mapping[str, Any]) -> str | None:
    """Name the field by which a place would be asked as this machine, and not with what somebody stored."""
    return next((field for field, ways in MACHINE_AUTH_METHODS.items() if auth.get(field) in ways), None)


async def load_backend(place: str) -> ModuleType:
    """Load the library of a place, if it is not there yet: some take a second."""
    return await asyncio.to_thread(importlib.import_module, f"penstock.secrets.backends.{BACKEND_MODULES[place]}")


async def fetch(settings: Settings, place: str, auth: Mapping[str, Any], path: str) -> str:
    """Ask a place for the secret at a path. What went wrong is told without a word of what was sent or answered."""
    source = await load_backend(place)
    seconds = settings.secrets.fetch_ms / 1000
    try:
        return await asyncio.wait_for(source.fetch(settings, auth, path), seconds)
    except TimeoutError:
        raise UnavailableError(f"no answer within {settings.secrets.fetch_ms} ms") from None
    except Exception as error:  # noqa: BLE001 - each library has a tree of its own, and each failure is the same to us
        raise UnavailableError(f"it cannot be had: {type(error).__name__}") from None
