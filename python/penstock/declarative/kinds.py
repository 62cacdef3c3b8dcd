"""Kinds of resources in the declarative state: how each is read, created, changed and deleted through the management
API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.declarative.document import (
    JsonObject,
    count_masks,
    diff_fields,
    is_expired,
    list_field,
    omit_computed,
    omit_fields,
)
from penstock.errors import RemoteError
from penstock.ids import PROVIDER_ALIASES, mask_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.remote import ManagementClient

ORGANISATION_PATH = "/v1/admin/organisation"
WORKSPACES_PATH = "/v1/admin/workspaces"
USERS_PATH = "/v1/admin/users"
# Field with the usage at which the limits of a new key, workspace or policy begin.
INITIAL_USAGE = "initial_usage"
# Fields of API keys that the gateway accepts only at creation, and never returns.
CREATION_FIELDS = ("key_sha256", INITIAL_USAGE)
LIMIT_FIELDS = ("usage_limits", "rate_limits", "expires_at")
# Fields that contain the name of a provider.
PROVIDER_FIELDS = frozenset({"provider", "ai_provider_id"})
WORKSPACE_FIELDS = (
    "name",
    "icon",
    "description",
    "defaults",
    "settings",
    "security_settings",
    "usage_limits",
    "rate_limits",
)


class GatewayState:
    """Client of one gateway, with lookup tables from its ids to slugs and email addresses."""

    def __init__(self, remote: ManagementClient, key: str = "") -> None:
        """Reads the lookup tables."""
        self.remote = remote
        # Mask of the API key that this client sends. Applying a document never deletes this key.
        self.own_key = mask_secret(key)
        self.workspaces = list(remote.iter_rows(WORKSPACES_PATH))
        self.slugs = {row["id"]: row["slug"] for row in self.workspaces}
        self.users = list(remote.iter_rows(USERS_PATH))
        self.emails = {row["id"]: row["email"] for row in self.users}
        self.ids = {email: user_id for user_id, email in self.emails.items()}
        self.references = {row["id"]: row["slug"] for row in remote.iter_rows("/v1/secret-references")}
        # The list does not include integrations that belong to virtual keys.
        shared = {row["id"]: row["slug"] for row in remote.iter_rows("/v1/integrations")}
        self.integrations = set(shared.values())
        # Slugs by id of workspaces and integrations. The gateway returns ids in fields where the document has slugs.
        self.named = self.slugs | shared
        self.configs: dict[str, str] = {}

    def export_mappings(self, row: Mapping[str, Any]) -> list[JsonObject]:
        """Returns the secret mappings of a row, with slugs of secret references in place of ids."""
        mappings = list_field(row, "secret_mappings")
        return [
            {
                **item,
                "secret_reference_id": self.references.get(item["secret_reference_id"], item["secret_reference_id"]),
            }
            for item in mappings
        ]


class ResourceKind:
    """Common behaviour of one kind of resource; subclasses override what differs."""

    name: str
    path: str
    fields: tuple[str, ...]
    # Fields that are set at creation and cannot be changed.
    fixed: tuple[str, ...] = ("slug",)
    # Fields among `fixed` that may differ from the stored resource without an error.
    unchecked_fixed: tuple[str, ...] = ("slug",)
    # Fields that contain credentials.
    secret_fields: tuple[str, ...] = ()
    named_by: tuple[str, ...] = ("slug", "name")
    # True if the gateway creates a resource with the slug in the document, instead of generating one.
    keeps_slug = True
    # Field with the email address of a person, who must already be a user; empty if there is none.
    email_field = ""

    @property
    def allowed_fields(self) -> tuple[str, ...]:
        """Fields that the document may contain."""
        return ("id", *(name for name in self.fixed if name not in self.fields), *self.fields)

    def fixed_values(self, resource: Mapping[str, Any]) -> JsonObject:
        """Returns the fixed fields that must equal those of the stored resource, normalised as the gateway stores them."""
        fixed = {name: resource[name] for name in self.fixed if name in resource and name not in self.unchecked_fixed}
        return {
            name: PROVIDER_ALIASES.get(text, text) if name in PROVIDER_FIELDS else text for name, text in fixed.items()
        }

    def display_name(self, resource: Mapping[str, Any]) -> str:
        """Returns the name of a resource for the output of the plan."""
        return str(resource.get("name") or next((resource[name] for name in self.named_by if resource.get(name)), "?"))

    def match_fields(self, resource: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the fields by which a resource is matched with a stored one. It is only the slug if the document
        contains one and `keeps_slug` is true.
        """
        return ("slug",) if self.keeps_slug and resource.get("slug") else self.named_by

    def read_all(self, state: GatewayState, workspace: JsonObject | None) -> list[JsonObject]:
        """Returns all resources of this kind in a workspace, or in the organisation itself."""
        rows = state.remote.iter_rows(self.path + self.workspace_query(workspace))
        return [self.export_row(state, row) for row in rows if self.includes_row(state, row, workspace)]

    def includes_row(self, _state: GatewayState, _row: JsonObject, _workspace: JsonObject | None) -> bool:
        """Returns true if a listed row belongs to this kind."""
        return True

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Returns a row in the format of the document."""
        exported = {name: row[name] for name in self.allowed_fields if name in row}
        exported |= {
            name: omit_computed(exported[name]) for name in ("usage_limits", "rotation_policy") if name in exported
        }
        return (
            {**exported, "secret_mappings": state.export_mappings(row)} if "secret_mappings" in exported else exported
        )

    def diff_resource(self, resource: Mapping[str, Any], stored: Mapping[str, Any], *, prune: bool) -> JsonObject:  # noqa: ARG002 - overridden by kinds with lists
        """Returns the fields to change. If one of `secret_fields` changes, includes all of them that are in clear text.
        The gateway requires the credentials again with a new destination.
        """
        changed = diff_fields({name: resource[name] for name in self.fields if name in resource}, stored)
        if changed.keys() & set(self.secret_fields):
            changed |= {
                name: resource[name]
                for name in self.secret_fields
                if resource.get(name) and not count_masks(resource[name])
            }
        return changed

    def confirm_changes(self, _state: GatewayState, _stored: JsonObject, changed: JsonObject) -> JsonObject:
        """Removes changes that turn out to be none. Overridden by kinds for which only the gateway can compare the
        values.
        """
        return changed

    def can_skip_creation(self, _state: GatewayState, resource: JsonObject) -> bool:
        """Returns true if a missing resource need not be created."""
        return is_expired(resource)

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a resource and returns the response."""
        body = {name: resource[name] for name in self.allowed_fields if name != "id" and resource.get(name) is not None}
        return state.remote.request("POST", self.path, {**body, **self.workspace_body(workspace)})

    def update(
        self, state: GatewayState, workspace: JsonObject | None, stored: JsonObject, changed: JsonObject
    ) -> None:
        """Changes a resource."""
        state.remote.request("PUT", self.resource_path(stored, workspace), changed)

    def delete(self, state: GatewayState, workspace: JsonObject | None, stored: JsonObject) -> None:
        """Deletes a resource."""
        state.remote.request("DELETE", self.resource_path(stored, workspace))

    def is_protected(self, _state: GatewayState, _stored: JsonObject) -> bool:
        """Returns true if a resource must never be deleted."""
        return False

    def workspace_body(self, workspace: JsonObject | None) -> JsonObject:
        """Returns the body fields that select the workspace."""
        return {"workspace_id": workspace["id"]} if workspace else {}

    def workspace_query(self, workspace: JsonObject | None) -> str:
        """Returns the query string that selects the workspace."""
        return f"?workspace_id={workspace['id']}" if workspace else ""

    def resource_path(self, stored: JsonObject, _workspace: JsonObject | None) -> str:
        """Returns the API path of a resource."""
        return f"{self.path}/{stored['id']}"


class Users(ResourceKind):
    """Users of the organisation. They cannot be created, only invited."""

    name, path, fields, fixed, named_by = "users", USERS_PATH, ("role",), ("email",), ("email",)
    email_field = "email"

    def is_protected(self, _state: GatewayState, stored: JsonObject) -> bool:
        """Returns true for the owner of the organisation."""
        return stored["role"] == "owner"


class Invites(ResourceKind):
    """Invitations that are not accepted yet."""

    name, path, fields = "invites", f"{USERS_PATH}/invites", ()
    fixed = ("email", "role", "workspaces", "workspace_api_key_details")
    named_by = ("email",)

    def includes_row(self, _state: GatewayState, row: JsonObject, _workspace: JsonObject | None) -> bool:
        """Returns true for pending invitations only."""
        return row["status"] == "pending"

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Returns the invitation, with slugs of workspaces in place of ids."""
        workspaces = [{**item, "id": state.slugs.get(item["id"], item["id"])} for item in row["workspaces"]]
        return {**super().export_row(state, row), "workspaces": workspaces}

    def fixed_values(self, resource: Mapping[str, Any]) -> JsonObject:
        """Returns the fixed fields with scopes sorted and without duplicates, as the gateway stores them."""
        fixed = super().fixed_values(resource)
        if details := fixed.get("workspace_api_key_details"):
            fixed["workspace_api_key_details"] = {**details, "scopes": sorted(set(details.get("scopes", ())))}
        return fixed

    def can_skip_creation(self, state: GatewayState, resource: JsonObject) -> bool:
        """Returns true if the person is already a user, or the invitation has expired."""
        return resource.get("email") in state.ids or super().can_skip_creation(state, resource)

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Sends an invitation."""
        return super().create(state, workspace, {"workspaces": [], **resource})


class Members(ResourceKind):
    """Members of a workspace."""

    name, path, fields, fixed, named_by = "members", WORKSPACES_PATH, ("role",), ("email",), ("email",)
    email_field = "email"

    def read_all(self, state: GatewayState, workspace: JsonObject | None) -> list[JsonObject]:
        """Returns the members of a workspace; empty for the organisation."""
        rows = state.remote.iter_rows(f"{WORKSPACES_PATH}/{workspace['id']}/users") if workspace else ()
        return [self.export_row(state, row) for row in rows]

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Adds a user to the workspace."""
        member = {"id": state.ids[resource["email"]], "role": resource.get("role", "member")}
        return state.remote.request("POST", f"{WORKSPACES_PATH}/{(workspace or {})['id']}/users", {"users": [member]})

    def resource_path(self, stored: JsonObject, workspace: JsonObject | None) -> str:
        """Returns the API path of a member."""
        return f"{WORKSPACES_PATH}/{(workspace or {})['id']}/users/{stored['id']}"


class SecretReferences(ResourceKind):
    """References to secrets in external secret managers."""

    name, path = "secret_references", "/v1/secret-references"
    fields = (
        *("name", "description", "auth_config", "secret_path", "secret_key"),
        *("allow_all_workspaces", "allowed_workspaces", "tags"),
    )
    fixed = ("slug", "manager_type")
    secret_fields = ("auth_config",)

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Reads the complete secret reference, with slugs of workspaces in place of ids."""
        path = f"{self.path}/{row['id']}"
        fetched = super().export_row(state, state.remote.request("GET", path))
        allowed_ids = state.remote.request("GET", f"{path}/workspaces")["allowed_workspaces"]
        # Archived workspaces are not part of the state.
        allowed_slugs = [state.slugs[allowed_id] for allowed_id in allowed_ids if allowed_id in state.slugs]
        return {**fetched, "allowed_workspaces": allowed_slugs}

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a secret reference for all workspaces or for a list of them."""
        return super().create(state, workspace, _omit_unused_access_field(resource))

    def update(
        self, state: GatewayState, workspace: JsonObject | None, stored: JsonObject, changed: JsonObject
    ) -> None:
        """Changes a secret reference, including the workspaces that may use it."""
        super().update(state, workspace, stored, _omit_unused_access_field(changed))


def _omit_unused_access_field(resource: JsonObject) -> JsonObject:
    """Omits one of `allow_all_workspaces` and `allowed_workspaces`, because the API accepts only one."""
    return omit_fields(resource, "allow_all_workspaces" if resource.get("allowed_workspaces") else "allowed_workspaces")


class Providers(ResourceKind):
    """Integrations that are available in a workspace."""

    name, path = "providers", "/v1/providers"
    fields = ("name", "note", "tags", *LIMIT_FIELDS)
    fixed = ("slug", "integration_id")

    def includes_row(self, state: GatewayState, row: JsonObject, _workspace: JsonObject | None) -> bool:
        """Returns true for providers, false for virtual keys."""
        return row["integration_id"] in state.integrations

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a provider. If the workspace already got one with this slug from the gateway, changes it instead."""
        stored = (
            state.remote.find(f"{self.path}/{resource['slug']}{self.workspace_query(workspace)}")
            if resource.get("slug")
            else None
        )
        if stored is None:
            return super().create(state, workspace, resource)
        self.update(state, workspace, stored, {name: resource[name] for name in self.fields if name in resource})
        return stored

    def resource_path(self, stored: JsonObject, workspace: JsonObject | None) -> str:
        """Returns the API path of a provider."""
        return f"{self.path}/{stored['id']}{self.workspace_query(workspace)}"


class VirtualKeys(Providers):
    """Virtual keys: providers with their own credential. Their integrations are not part of the state."""

    name, path = "virtual_keys", "/v1/virtual-keys"
    fields = ("name", "key", "note", "model_config", "secret_mappings", *LIMIT_FIELDS)
    fixed = ("slug", "provider")
    secret_fields = ("key", "model_config")

    def includes_row(self, state: GatewayState, row: JsonObject, workspace: JsonObject | None) -> bool:
        """Returns true for virtual keys, false for providers."""
        return not super().includes_row(state, row, workspace)

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Returns the virtual key with its masked credential."""
        return super().export_row(state, {**row, "key": row["masked_api_key"] or ""})


class Configs(ResourceKind):
    """Routing configs. Without a slug in the document, the gateway generates one."""

    name, path = "configs", "/v1/configs"
    fields = ("name", "config", "status", "is_default")
    secret_fields = ("config",)

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Reads the config with its content."""
        config_row = state.remote.request("GET", f"{self.path}/{row['id']}")
        state.configs[config_row["id"]] = config_row["slug"]
        return {**super().export_row(state, config_row), "config": msgspec.json.decode(config_row["config"])}

    def confirm_changes(self, state: GatewayState, stored: JsonObject, changed: JsonObject) -> JsonObject:
        """Omits `config` if a dry run on the gateway reports no change. The client cannot compare the configs itself,
        because the credentials of the stored config are masked.
        """
        if "config" not in changed or not count_masks(stored["config"]):
            return changed
        try:
            response = state.remote.request(
                "PUT", f"{self.path}/{stored['id']}?dry_run=true", {"config": changed["config"]}
            )
        except RemoteError:
            # The error is not lost: applying the change reports it again, with its path in the document.
            return changed
        return omit_fields(changed, "config") if response["version_id"] else changed

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a config, then archives it if the document marks it as archived."""
        body = {
            "name": resource["name"],
            "config": resource.get("config"),
            "isDefault": int(resource.get("is_default") or 0),
            **({"slug": resource["slug"]} if resource.get("slug") else {}),
        }
        created = state.remote.request("POST", self.path, {**body, **self.workspace_body(workspace)})
        if resource.get("status", "active") != "active":
            self.update(state, workspace, created, {"status": resource["status"]})
        return created


class ApiKeys(ResourceKind):
    """API keys. The gateway returns the key itself only once."""

    name, path = "api_keys", "/v1/api-keys"
    fields = ("name", "description", "scopes", "defaults", "alert_emails", "rotation_policy", *LIMIT_FIELDS)
    # `CREATION_FIELDS` are for keys imported from another gateway. They are sent only at creation, and the gateway
    # never returns them.
    fixed = ("type", "user", *CREATION_FIELDS)
    unchecked_fixed = CREATION_FIELDS
    named_by = ("id", "name")
    email_field = "user"
    keeps_slug = False

    def includes_row(self, _state: GatewayState, row: JsonObject, workspace: JsonObject | None) -> bool:
        """Returns true for keys of this workspace, or of the organisation itself."""
        return row["workspace_id"] == (workspace["id"] if workspace else None)

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Returns the key, with the email address of its user and the slug of its config in place of ids."""
        exported, defaults = super().export_row(state, row), row["defaults"]
        config = state.configs.get(defaults["config_id"], defaults["config_id"])
        exported["user"] = state.emails.get(row["user_id"])
        return {**exported, "masked": row["key"], "defaults": {**defaults, "config_id": config}}

    @property
    def allowed_fields(self) -> tuple[str, ...]:
        """Fields that the document may contain. `masked` is one of them, so that readers of an exported document can
        recognise a key.
        """
        return (*super().allowed_fields, "masked")

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a key; the response contains the key itself."""
        kind = str(resource.get("type") or ("workspace-service" if workspace else "organisation-service"))
        body = {name: resource[name] for name in self.fields if resource.get(name) is not None}
        if resource.get("user"):
            body["user_id"] = state.ids[resource["user"]]
        body |= {name: resource[name] for name in CREATION_FIELDS if resource.get(name)}
        return state.remote.request(
            "POST", f"{self.path}/{kind.replace('-', '/')}", {**body, **self.workspace_body(workspace)}
        )

    def is_protected(self, state: GatewayState, stored: JsonObject) -> bool:
        """Returns true for the key that this client uses."""
        return stored["masked"] == state.own_key


class Policies(ResourceKind):
    """Common behaviour of both kinds of policies. They have no slug, and archived ones are not part of the state."""

    fixed = ("type", "group_by")
    named_by = ("id", "name")
    unchecked_fixed = ()
    keeps_slug = False

    def match_fields(self, resource: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the fields by which a policy is matched with a stored one. A policy without a name is matched by its
        conditions.
        """
        return self.named_by if resource.get("name") else ("id", "conditions")


class UsageLimitsPolicies(Policies):
    """Usage limits policies of a workspace."""

    name, path = "usage_limits_policies", "/v1/policies/usage-limits"
    # The gateway accepts initial usage only at creation, and never returns it.
    fixed = ("type", "group_by", INITIAL_USAGE)
    unchecked_fixed = (INITIAL_USAGE,)
    fields = (
        *("name", "description", "conditions", "credit_limit", "alert_threshold"),
        *("periodic_reset", "periodic_reset_days", "enforcement", "dry_run"),
    )


class RateLimitsPolicies(Policies):
    """Rate limits policies of a workspace."""

    name, path = "rate_limits_policies", "/v1/policies/rate-limits"
    fields = ("name", "description", "conditions", "unit", "value", "window", "dry_run")
    fixed = ("type", "group_by", "target")
