"""State document that an import builds: integrations of the organisation, and workspaces with providers, configs, keys
and policies. `penstock apply` applies it.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.ids import slugify

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

JsonObject = dict[str, Any]

# The same version as in `penstock.declarative.plan`, which checks it.
DOCUMENT_VERSION = 1
MAX_SLUG_CHARS = 60
# Scopes of imported keys: calls of models, and the list of models.
KEY_SCOPES = ("completions.write", "models.list", "prompts.render")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
CENTS = 100


class Credential(NamedTuple):
    """Credential of an integration: the provider, the key and the options. `hint` is a name for the key, which becomes
    part of the slug.
    """

    provider: str
    key: str
    options: JsonObject
    hint: str = ""


class StateBuilder:
    """Collects the parts of a state document. Equal credentials become one integration."""

    def __init__(self) -> None:
        """Starts with an empty document."""
        self._integrations: dict[str, JsonObject] = {}
        self._slugs_by_credential: dict[bytes, str] = {}
        self._workspaces: dict[str, JsonObject] = {}
        self._models: dict[tuple[str, str], JsonObject] = {}
        self._invitations: dict[str, JsonObject] = {}

    def add_invitation(self, email: str, workspaces: list[str]) -> None:
        """Invites a person as a member of the organisation and of these workspaces."""
        access = [{"id": slug, "role": "member"} for slug in workspaces]
        self._invitations.setdefault(email, {"email": email, "role": "member", "workspaces": access})

    def add_integration(self, credential: Credential, deployment: JsonObject | None = None) -> str:
        """Adds an integration and returns its slug. If there is an equal one, returns the slug of that one.
        `deployment` is a deployment of an Azure resource.
        """
        content = {"ai_provider_id": credential.provider, "key": credential.key, "options": credential.options}
        identity = msgspec.json.encode(content, order="deterministic")
        slug = self._slugs_by_credential.get(identity)
        if slug is None:
            slug = unused_slug(f"{credential.provider}-{credential.hint}".strip("-"), self._integrations)
            self._slugs_by_credential[identity] = slug
            row: JsonObject = {"slug": slug, "name": slug, "ai_provider_id": credential.provider}
            row |= {"key": credential.key} if credential.key else {}
            row |= {"configurations": dict(credential.options)} if credential.options else {}
            self._integrations[slug] = row
        if deployment:
            listed = self._integrations[slug].setdefault("configurations", {}).setdefault("azure_deployment_config", [])
            if deployment not in listed:
                listed.append(deployment)
        return slug

    def add_integration_row(self, row: JsonObject) -> None:
        """Adds an integration with its own slug."""
        self._integrations[row["slug"]] = row

    def integration_rows(self) -> list[JsonObject]:
        """Returns the integrations that were added so far."""
        return list(self._integrations.values())

    def set_model_price(self, integration: str, model: str, prices: Mapping[str, float]) -> None:
        """Sets the prices of a model: US dollars per token, by the names of `pay_as_you_go`."""
        rates = {name: {"price": round(price * CENTS, 15)} for name, price in prices.items()}
        row = {"slug": model, "enabled": True, "pricing_config": {"pay_as_you_go": rates, "currency": "USD"}}
        self._models[(integration, model)] = row

    def add_workspace(self, slug: str, name: str, **fields: object) -> JsonObject:
        """Adds a workspace, or returns the one with this slug."""
        # The API returns the limits of a workspace as a list.
        if usage := fields.get("usage_limits"):
            fields["usage_limits"] = [usage]
        lists = ("providers", "virtual_keys", "configs", "prompts", "api_keys")
        lists += ("usage_limits_policies", "rate_limits_policies")
        row: JsonObject = {"slug": slug, "name": name, **fields, **{kind: list[JsonObject]() for kind in lists}}
        return self._workspaces.setdefault(slug, row)

    def unused_workspace_slug(self, name: str) -> str:
        """Returns a slug for a new workspace."""
        return unused_slug(name, self._workspaces)

    def build(self, *, has_providers: bool = False) -> JsonObject:
        """Returns the document. Each workspace may use all integrations. It gets a provider for each of them, unless
        `has_providers` is true because the source lists providers itself.
        """
        access = [{"id": slug, "enabled": True} for slug in self._workspaces]
        for (slug, _), row in self._models.items():
            self._integrations[slug].setdefault("models", []).append(row)
        for row in self._integrations.values():
            row["workspaces"] = [dict(item) for item in access]
        for workspace in () if has_providers else self._workspaces.values():
            workspace["providers"] += [
                {"slug": slug, "name": slug, "integration_id": slug} for slug in self._integrations
            ]
        remaining = [{name: value for name, value in row.items() if value != []} for row in self._workspaces.values()]
        document: JsonObject = {"version": DOCUMENT_VERSION}
        lists = {"integrations": self._integrations, "invites": self._invitations}
        if organisation := {kind: list(rows.values()) for kind, rows in lists.items() if rows}:
            document["organisation"] = organisation
        return {**document, "workspaces": remaining}


def unused_slug(name: str, used: Collection[str]) -> str:
    """Returns a slug made from a name, with a number if it is used."""
    root = slugify(name)[:MAX_SLUG_CHARS].strip("-") or "imported"
    slug, number = root, 2
    while slug in used:
        slug, number = f"{root}-{number}", number + 1
    return slug


def short_digest(value: object) -> str:
    """Returns a short digest of a value, for a slug that is the same in every import."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:8]


def env_reference(name: str) -> str | None:
    """Returns the reference of a state document to an environment variable; `None` if no shell can set the name."""
    return f"${{{name}}}" if ENV_NAME.match(name) else None
