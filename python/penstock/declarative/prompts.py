"""Labels, partials and saved prompts in the declarative state. Only the published versions, which requests use, are
part of it. Other versions and collections are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.declarative.document import JsonObject, omit_fields
from penstock.declarative.kinds import GatewayState, ResourceKind
from penstock.declarative.prompt_files import order_partials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Fields of a prompt whose change creates a new version.
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
LABELS_FIELD = "labels"


class Labels(ResourceKind):
    """Labels that users created in a workspace. The universal labels, which every workspace has, are not part of the
    state.
    """

    name, path = "labels", "/v1/labels"
    fields, fixed = ("name", "description", "color_code", "protected"), ()
    named_by = ("id", "name")
    keeps_slug = False

    def read_all(self, state: GatewayState, workspace: JsonObject | None) -> list[JsonObject]:
        """Returns the labels of a workspace; empty for the organisation."""
        return super().read_all(state, workspace) if workspace else []

    def includes_row(self, _state: GatewayState, row: JsonObject, _workspace: JsonObject | None) -> bool:
        """Returns false for labels that every workspace has."""
        return not row["is_universal"]


class VersionedTemplates(ResourceKind):
    """Common behaviour of prompts and partials: a changed template becomes a new version, which is published."""

    version_fields: tuple[str, ...]

    def read_all(self, state: GatewayState, workspace: JsonObject | None) -> list[JsonObject]:
        """Returns the templates of a workspace; empty for the organisation."""
        return super().read_all(state, workspace) if workspace else []

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Reads the published version."""
        return super().export_row(state, state.remote.request("GET", f"{self.path}/{row['id']}?version=default"))

    def update(
        self,
        state: GatewayState,
        workspace: JsonObject | None,  # noqa: ARG002 - the id identifies the template
        stored: JsonObject,
        changed: JsonObject,
    ) -> None:
        """Changes a template. A new version is published, so that requests use it."""
        path, body = f"{self.path}/{stored['id']}", self.update_body(changed)
        if body:
            state.remote.request("PUT", path, body)
        if not changed.keys().isdisjoint(self.version_fields):
            latest = state.remote.request("GET", path)["latest_version"]
            state.remote.request("PUT", f"{path}/makeDefault", {"version": latest})

    def update_body(self, changed: JsonObject) -> JsonObject:
        """Returns the body that changes these fields."""
        return changed


class PromptPartials(VersionedTemplates):
    """Prompt partials: texts that templates include. A partial is listed after the partials that it includes."""

    name, path = "prompt_partials", "/v1/prompts/partials"
    fields = ("name", "status", "string")
    version_fields = ("string",)

    def read_all(self, state: GatewayState, workspace: JsonObject | None) -> list[JsonObject]:
        """Returns the partials of a workspace, each after those that it includes; empty for the organisation."""
        rows_by_slug = {row["slug"]: row for row in super().read_all(state, workspace)}
        return [
            rows_by_slug[slug] for slug in order_partials({slug: row["string"] for slug, row in rows_by_slug.items()})
        ]

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a partial, then archives it if the document marks it as archived."""
        created = super().create(state, workspace, omit_fields(resource, "status"))
        if resource.get("status", "active") != "active":
            self.update(state, workspace, created, {"status": resource["status"]})
        return created


class Prompts(VersionedTemplates):
    """Saved prompts, with the labels on their published version."""

    name, path = "prompts", "/v1/prompts"
    fields = ("name", "status", *VERSION_FIELDS, LABELS_FIELD)
    version_fields = VERSION_FIELDS

    def export_row(self, state: GatewayState, row: JsonObject) -> JsonObject:
        """Reads the published version of the prompt and its labels."""
        detail = state.remote.request("GET", f"{self.path}/{row['id']}?version=default")
        exported = ResourceKind.export_row(self, state, detail)
        return {**exported, LABELS_FIELD: sorted(label["name"] for label in detail["prompt_version_labels"])}

    def create(self, state: GatewayState, workspace: JsonObject | None, resource: JsonObject) -> JsonObject:
        """Creates a prompt and labels its version, then archives it if the document marks it as archived."""
        created = super().create(state, workspace, {"parameters": {}, **omit_fields(resource, "status", LABELS_FIELD)})
        put_labels(state, f"{self.path}/{created['id']}", resource.get(LABELS_FIELD) or ())
        if resource.get("status", "active") != "active":
            self.update(state, workspace, created, {"status": resource["status"]})
        return created

    def diff_resource(self, resource: Mapping[str, Any], stored: Mapping[str, Any], *, prune: bool) -> JsonObject:
        """Returns the fields to change. The order of labels does not matter."""
        changed = super().diff_resource(resource, stored, prune=prune)
        desired = sorted(resource.get(LABELS_FIELD) or ())
        return omit_fields(changed, LABELS_FIELD) if desired == (stored.get(LABELS_FIELD) or []) else changed

    def update(
        self, state: GatewayState, workspace: JsonObject | None, stored: JsonObject, changed: JsonObject
    ) -> None:
        """Changes a prompt. If this publishes a new version, moves the labels of the former version to it."""
        super().update(state, workspace, stored, changed)
        is_new = not changed.keys().isdisjoint(self.version_fields)
        if is_new or LABELS_FIELD in changed:
            desired = changed.get(LABELS_FIELD, stored.get(LABELS_FIELD)) or ()
            put_labels(state, f"{self.path}/{stored['id']}", desired)

    def update_body(self, changed: JsonObject) -> JsonObject:
        """Returns the body that changes these fields of a prompt, without its labels."""
        body = omit_fields(changed, LABELS_FIELD)
        return {"patch": True, **body} if body else {}


def put_labels(state: GatewayState, path: str, desired: Iterable[str]) -> None:
    """Sets the labels of the published version of a prompt to exactly these."""
    version = state.remote.request("GET", f"{path}?version=default")
    present = {label["name"] for label in version["prompt_version_labels"]}
    version_path = f"{path}/versions/{version['prompt_version_id']}"
    if present - set(desired):
        state.remote.request("PUT", version_path, {"label_id": None})
        present = set[str]()
    for name in sorted(set(desired) - present):
        state.remote.request("PUT", version_path, {"label_id": name})
