"""Saved prompts in the declarative state: the version that requests use. Other versions, labels and collections are not
part of the state.
"""

from __future__ import annotations

from penstock.declarative.document import JsonObject, omit_fields
from penstock.declarative.kinds import GatewayState, ResourceKind

# Fields of which a change makes a new version.
VERSION_FIELDS = (
    "string",
    "parameters",
    "virtual_key",
    "model",
    "functions",
    "tools",
    "tool_choice",
    "is_raw_template",
)


class Prompts(ResourceKind):
    """Saved prompts. A changed template becomes a new version, which is published."""

    name, path = "prompts", "/v1/prompts"
    fields = ("name", "status", *VERSION_FIELDS)

    def read_all(self, ground: GatewayState, workspace: JsonObject | None) -> list[JsonObject]:
        """Returns the prompts of a workspace; empty for the organisation."""
        return super().read_all(ground, workspace) if workspace else []

    def export_row(self, ground: GatewayState, row: JsonObject) -> JsonObject:
        """Reads the published version of the prompt."""
        return super().export_row(ground, ground.remote.request("GET", f"{self.path}/{row['id']}?version=default"))

    def create(self, ground: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a prompt, then archives it if the document says so."""
        created = super().create(ground, workspace, {"parameters": {}, **omit_fields(resource, "status")})
        if resource.get("status", "active") != "active":
            self.update(ground, workspace, created, {"status": resource["status"]})
        return created

    def update(
        self,
        ground: GatewayState,
        workspace: JsonObject | None,  # noqa: ARG002 - the id names the prompt
        stored: JsonObject,
        changed: JsonObject,
    ) -> None:
        """Changes a prompt. A new version is published, so that requests use it."""
        path = f"{self.path}/{stored['id']}"
        ground.remote.request("PUT", path, {"patch": True, **changed})
        if not changed.keys().isdisjoint(VERSION_FIELDS):
            latest = ground.remote.request("GET", path)["prompt_version"]
            ground.remote.request("PUT", f"{path}/makeDefault", {"version": latest})
