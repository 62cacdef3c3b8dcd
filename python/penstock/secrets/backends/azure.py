"""Asks Azure Key Vault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential
from azure.keyvault.secrets.aio import SecretClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings import Settings


async def fetch(settings: Settings, auth: Mapping[str, Any], path: str) -> str:
    """Give the value of a secret by its name; a version may stand behind it after a slash."""
    name, _, version = path.partition("/")
    options: dict[str, Any] = {"retry_total": 1}
    if settings.upstream.tls_ca:
        options["connection_verify"] = settings.upstream.tls_ca
    credential = _create_credential(settings, auth, options)
    async with credential, SecretClient(auth["azure_vault_url"], credential, **options) as client:
        found = await client.get_secret(name, version or None)
    return found.value or ""


def _create_credential(settings: Settings, auth: Mapping[str, Any], options: dict[str, Any]) -> Any:  # noqa: ANN401 - of several kinds
    """Choose who asks; those of the machine itself where nobody is named."""
    if settings.secrets.azure_authority:
        # A cloud of one's own is not known to Microsoft's directory.
        options = {**options, "authority": settings.secrets.azure_authority, "disable_instance_discovery": True}
    if auth["azure_auth_mode"] == "entra":
        return ClientSecretCredential(
            auth["azure_entra_tenant_id"], auth["azure_entra_client_id"], auth["azure_entra_client_secret"], **options
        )
    if auth["azure_auth_mode"] == "managed":
        return ManagedIdentityCredential(client_id=auth.get("azure_managed_client_id"))
    return DefaultAzureCredential(**options)
