"""Azure Key Vault backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential
from azure.keyvault.secrets.aio import SecretClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings import Settings


async def fetch(settings: Settings, auth: Mapping[str, Any], path: str) -> str:
    """Returns the value of a secret. The path is its name, optionally followed by a slash and a version."""
    name, _, version = path.partition("/")
    options: dict[str, Any] = {"retry_total": 1}
    if settings.upstream.tls_ca:
        options["connection_verify"] = settings.upstream.tls_ca
    credential = _create_credential(settings, auth, options)
    async with credential, SecretClient(auth["azure_vault_url"], credential, **options) as client:
        found = await client.get_secret(name, version or None)
    return found.value or ""


def _create_credential(settings: Settings, auth: Mapping[str, Any], options: dict[str, Any]) -> Any:  # noqa: ANN401 - of several kinds
    """Returns the credential of the auth config. Falls back to the machine's own identity."""
    if settings.secrets.azure_authority:
        # Instance discovery fails for a private cloud, which Microsoft's directory does not list.
        options = {**options, "authority": settings.secrets.azure_authority, "disable_instance_discovery": True}
    if auth["azure_auth_mode"] == "entra":
        return ClientSecretCredential(
            auth["azure_entra_tenant_id"], auth["azure_entra_client_id"], auth["azure_entra_client_secret"], **options
        )
    if auth["azure_auth_mode"] == "managed":
        return ManagedIdentityCredential(client_id=auth.get("azure_managed_client_id"))
    return DefaultAzureCredential(**options)
