"""Integrations in the declarative state, with settings of their models and access of workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.declarative.document import JsonObject, count_masks, diff_fields, list_field, omit_computed, omit_fields
from penstock.declarative.kinds import GatewayState, ResourceKind
from penstock.integrations.provider_options import SECRET_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.remote import ManagementClient


# Credential fields of an integration. The gateway also uses them for models without credentials of their own.
CREDENTIAL_FIELDS = ("key", "configurations")


class Integrations(ResourceKind):
    """Integrations, with settings of their models and access of workspaces."""

    name, path = "integrations", "/v1/integrations"
    own_fields = ("name", "key", "description", "configurations", "secret_mappings", "pricing_adjustments", "tags")
    nested_fields = ("allow_all_models", "models", "global_workspace_access", "workspaces")
    fields = (*own_fields, *nested_fields)
    fixed = ("slug", "ai_provider_id")
    secret_fields = ("key", "configurations", "models")

    def workspace_query(self, workspace: JsonObject | None) -> str:
        """Returns the query that lists the organisation's integrations, or those of one workspace."""
        return f"?type=workspace&workspace_id={workspace['id']}" if workspace else "?type=organisation"

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Reads the complete integration. Omits models that only the public model list contains."""
        remote, path = state.remote, f"{self.path}/{row['id']}"
        integration = remote.request("GET", path)
        exported = super().export_row(state, {**integration, "key": integration["masked_key"] or ""})
        listed_models = [item for item in remote.request("GET", f"{path}/models")["models"] if item["created_at"]]
        exported["models"] = [
            omit_fields(listed_model, "created_at", "last_updated_at") for listed_model in listed_models
        ]
        if row["workspace_id"]:
            return omit_fields(exported, "global_workspace_access")
        access_rows = remote.request("GET", f"{path}/workspaces")["workspaces"]
        names = ("id", "enabled", "usage_limits", "rate_limits")
        # Archived workspaces are not part of the state, so their access is omitted.
        workspace_ids = set(state.slugs.values())
        exported["workspaces"] = [
            {name: omit_computed(access_row[name]) for name in names}
            for access_row in access_rows
            if access_row["id"] in workspace_ids
        ]
        return exported

    def diff_resource(self, resource: Mapping[str, Any], stored: Mapping[str, Any], *, prune: bool) -> JsonObject:
        """Returns the fields that differ. For models and workspaces, returns only the rows that differ."""
        rows = {name: self._diff_rows(name, resource, stored, prune=prune) for name in ("models", "workspaces")}
        plain = super().diff_resource(omit_fields(resource, *rows), stored, prune=prune)
        if _have_new_hosts(rows["models"], list_field(stored, "models")):
            # A request that sets a new host must contain the credentials: only a user who has them may choose where
            # they are sent.
            plain |= _unmasked_fields(resource)
        return {**plain, **{name: row for name, row in rows.items() if row}}

    def _diff_rows(
        self, name: str, resource: Mapping[str, Any], stored: Mapping[str, Any], *, prune: bool
    ) -> list[JsonObject]:
        key = "slug" if name == "models" else "id"
        stored_by_key = {row[key]: row for row in list_field(stored, name)}
        desired = list_field(resource, name)
        differing = [row for row in desired if diff_fields(row, stored_by_key.get(row[key], {}))]
        removed_rows = [row for row in stored_by_key.values() if row[key] not in {row[key] for row in desired}]
        # Only custom models can be deleted. Settings of other models stay.
        removed_rows = [{**row, "gone": True} for row in removed_rows if row.get("is_custom", True)]
        return [*differing, *(removed_rows if prune and name in resource else [])]

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates an integration without its default provider, because the document lists providers separately."""
        fields = {name: resource[name] for name in (*self.own_fields, *self.fixed) if resource.get(name) is not None}
        created = state.remote.request(
            "POST", self.path, {**fields, "create_default_provider": False, **self.workspace_body(workspace)}
        )
        self.update(
            state,
            workspace,
            created,
            {name: resource[name] for name in self.nested_fields if resource.get(name) is not None},
            _clear_credentials(resource),
        )
        return created

    def update(
        self,
        state: GatewayState,
        workspace: JsonObject | None,
        stored: JsonObject,
        changed: JsonObject,
        credentials: JsonObject | None = None,
    ) -> None:
        """Sends each part of a change to its endpoint. `credentials` are those of a new integration."""
        path, remote = self.resource_path(stored, workspace), state.remote
        if own_changes := {name: changed[name] for name in self.own_fields if name in changed}:
            remote.request("PUT", path, own_changes)
        self._update_models(remote, f"{path}/models", changed, credentials or _clear_credentials(changed))
        self._update_workspaces(remote, f"{path}/workspaces", stored, changed)

    def _update_models(self, remote: ManagementClient, path: str, changed: JsonObject, credentials: JsonObject) -> None:
        models = list_field(changed, "models")
        if removed_slugs := [model["slug"] for model in models if model.get("gone")]:
            remote.request("DELETE", path, {"models": removed_slugs})
        updated_models = [
            {name: value for name, value in model.items() if value != {}} for model in models if not model.get("gone")
        ]
        if updated_models or "allow_all_models" in changed:
            rule = {"allow_all_models": changed["allow_all_models"]} if "allow_all_models" in changed else {}
            # The gateway accepts a new host only in a request that also contains the credentials.
            sent = credentials if any(map(_custom_host, updated_models)) else {}
            remote.request("PUT", path, {"models": updated_models, **rule, **sent})

    def _update_workspaces(self, remote: ManagementClient, path: str, stored: JsonObject, changed: JsonObject) -> None:
        access_rows = list_field(changed, "workspaces")
        body: JsonObject = {"create_default_provider": False}
        if any(access_row.get("gone") for access_row in access_rows):
            # The API cannot remove the entry of a single workspace, so the complete list is replaced.
            body["override_existing_workspace_access"] = True
            merged = {item["id"]: item for item in [*list_field(stored, "workspaces"), *access_rows]}
            access_rows = [item for item in merged.values() if not item.get("gone")]
        if access := changed.get("global_workspace_access"):
            body |= {
                "global_workspace_access": omit_fields(access, "create_default_provider"),
                "create_default_provider": access.get("create_default_provider", False),
            }
        if access_rows or len(body) > 1:
            rows = [{**access_row, "create_default_provider": False} for access_row in access_rows]
            remote.request("PUT", path, {**body, "workspaces": rows})


def _unmasked_fields(resource: Mapping[str, Any]) -> JsonObject:
    return {
        name: resource[name] for name in CREDENTIAL_FIELDS if resource.get(name) and not count_masks(resource[name])
    }


def _clear_credentials(resource: Mapping[str, Any]) -> JsonObject:
    """Returns the key and the secret options that a document contains in clear text."""
    unmasked = _unmasked_fields(resource)
    options: JsonObject = unmasked.pop("configurations", {})
    secrets = {name: value for name, value in options.items() if name in SECRET_FIELDS and value}
    return {**unmasked, **({"configurations": secrets} if secrets else {})}


def _have_new_hosts(models: list[JsonObject], stored_models: list[JsonObject]) -> bool:
    """Returns true if a model gets a custom host that it did not have before."""
    known_hosts = {row["slug"]: _custom_host(row) for row in stored_models}
    return any(_custom_host(row) not in {None, known_hosts.get(row["slug"])} for row in models)


def _custom_host(model: JsonObject) -> str | None:
    configurations: JsonObject = model.get("configurations") or {}
    return configurations.get("custom_host")
