"""The kinds of things that a state holds: how each is read, made, changed and removed."""

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
from penstock.ids import PROVIDER_ALIASES, mask_secret
from penstock.remote import RemoteError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.remote import ManagementClient

ORGANISATION_PATH = "/v1/admin/organisation"
WORKSPACES_PATH = "/v1/admin/workspaces"
USERS_PATH = "/v1/admin/users"
LIMIT_FIELDS = ("usage_limits", "rate_limits", "expires_at")
# The fields that name a provider.
PROVIDER_FIELDS = frozenset({"provider", "ai_provider_id"})
WORKSPACE_FIELDS = ("name", "description", "defaults", "settings", "security_settings", "usage_limits", "rate_limits")


class GatewayState:
    """One gateway: how it is asked, and what its ids are called."""

    def __init__(self, remote: ManagementClient, key: str = "") -> None:
        """Learn the names."""
        self.remote = remote
        # Of the key that asks: it is never taken away by what it asks for.
        self.own_key = mask_secret(key)
        self.workspaces = list(remote.iter_rows(WORKSPACES_PATH))
        self.slugs = {row["id"]: row["slug"] for row in self.workspaces}
        self.users = list(remote.iter_rows(USERS_PATH))
        self.emails = {row["id"]: row["email"] for row in self.users}
        self.ids = {email: user_id for user_id, email in self.emails.items()}
        self.references = {row["id"]: row["slug"] for row in remote.iter_rows("/v1/secret-references")}
        # Those that a virtual key brought along are not listed.
        shared = {row["id"]: row["slug"] for row in remote.iter_rows("/v1/integrations")}
        self.integrations = set(shared.values())
        # What may be named by its id where it is written by its slug.
        self.named = self.slugs | shared
        self.configs: dict[str, str] = {}

    def export_mappings(self, row: Mapping[str, Any]) -> list[JsonObject]:
        """Name the secrets of a row by their slugs."""
        found = list_field(row, "secret_mappings")
        return [
            {**one, "secret_reference_id": self.references.get(one["secret_reference_id"], one["secret_reference_id"])}
            for one in found
        ]


class ResourceKind:
    """What is kept of one kind of thing; the plain way to treat it."""

    name: str
    path: str
    fields: tuple[str, ...]
    # Chosen once.
    fixed: tuple[str, ...] = ("slug",)
    # Of these what is not refused where it is another by now: it is found by it, or it passes from one to the next.
    unchecked_fixed: tuple[str, ...] = ("slug",)
    # Places that hold credentials.
    secret_fields: tuple[str, ...] = ()
    named_by: tuple[str, ...] = ("slug", "name")
    # Whether a new one gets the slug that is written.
    keeps_slug = True
    # The field that names a person by e-mail address, who must be a user already.
    email_field = ""

    @property
    def allowed_fields(self) -> tuple[str, ...]:
        """What may be written of one."""
        return ("id", *(name for name in self.fixed if name not in self.fields), *self.fields)

    def fixed_values(self, thing: Mapping[str, Any]) -> JsonObject:
        """Give what was chosen once, as it is kept."""
        found = {name: thing[name] for name in self.fixed if name in thing and name not in self.unchecked_fixed}
        return {
            name: PROVIDER_ALIASES.get(text, text) if name in PROVIDER_FIELDS else text for name, text in found.items()
        }

    def display_name(self, thing: Mapping[str, Any]) -> str:
        """Name one, as plans do."""
        return str(thing.get("name") or next((thing[name] for name in self.named_by if thing.get(name)), "?"))

    def match_fields(self, thing: Mapping[str, Any]) -> tuple[str, ...]:
        """Say by which fields the one that is meant is found: what keeps its slug is that alone."""
        return ("slug",) if self.keeps_slug and thing.get("slug") else self.named_by

    def read_all(self, ground: GatewayState, place: JsonObject | None) -> list[JsonObject]:
        """Give all that there are in a workspace, or in the organisation itself."""
        rows = ground.remote.iter_rows(self.path + self.workspace_query(place))
        return [self.export_row(ground, row) for row in rows if self.includes_row(ground, row, place)]

    def includes_row(self, _ground: GatewayState, _row: JsonObject, _place: JsonObject | None) -> bool:
        """Whether a listed row is one of these."""
        return True

    def export_row(self, ground: GatewayState, row: JsonObject) -> JsonObject:
        """Write one down."""
        shown = {name: row[name] for name in self.allowed_fields if name in row}
        shown |= {name: omit_computed(shown[name]) for name in ("usage_limits", "rotation_policy") if name in shown}
        return {**shown, "secret_mappings": ground.export_mappings(row)} if "secret_mappings" in shown else shown

    def diff_resource(self, thing: Mapping[str, Any], there: Mapping[str, Any], *, prune: bool) -> JsonObject:  # noqa: ARG002 - for kinds that hold lists
        """Give what is to be changed, and credentials along with what may say where they go: elsewhere they are needed anew."""
        changed = diff_fields({name: thing[name] for name in self.fields if name in thing}, there)
        if changed.keys() & set(self.secret_fields):
            changed |= {
                name: thing[name] for name in self.secret_fields if thing.get(name) and not count_masks(thing[name])
            }
        return changed

    def confirm_changes(self, _ground: GatewayState, _there: JsonObject, changed: JsonObject) -> JsonObject:
        """Leave out of what is to be changed what only the gateway can compare, if it is as it was."""
        return changed

    def can_skip_creation(self, _ground: GatewayState, thing: JsonObject) -> bool:
        """Whether one that is not there need not be made."""
        return is_expired(thing)

    def create(self, ground: GatewayState, place: JsonObject | None, thing: JsonObject) -> JsonObject:
        """Make one, and give what was answered."""
        body = {name: thing[name] for name in self.allowed_fields if name != "id" and thing.get(name) is not None}
        return ground.remote.request("POST", self.path, {**body, **self.workspace_body(place)})

    def update(self, ground: GatewayState, place: JsonObject | None, there: JsonObject, changed: JsonObject) -> None:
        """Change one."""
        ground.remote.request("PUT", self.resource_path(there, place), changed)

    def delete(self, ground: GatewayState, place: JsonObject | None, there: JsonObject) -> None:
        """Remove one."""
        ground.remote.request("DELETE", self.resource_path(there, place))

    def is_protected(self, _ground: GatewayState, _there: JsonObject) -> bool:
        """Whether one is never removed."""
        return False

    def workspace_body(self, place: JsonObject | None) -> JsonObject:
        """Say in a body where something is."""
        return {"workspace_id": place["id"]} if place else {}

    def workspace_query(self, place: JsonObject | None) -> str:
        """Say in a query where something is."""
        return f"?workspace_id={place['id']}" if place else ""

    def resource_path(self, there: JsonObject, _place: JsonObject | None) -> str:
        """Say where one is found."""
        return f"{self.path}/{there['id']}"


class Users(ResourceKind):
    """People, who come by invitation alone."""

    name, path, fields, fixed, named_by = "users", USERS_PATH, ("role",), ("email",), ("email",)
    email_field = "email"

    def is_protected(self, _ground: GatewayState, there: JsonObject) -> bool:
        """Keep the owner."""
        return there["role"] == "owner"


class Invites(ResourceKind):
    """Invitations that were not answered yet."""

    name, path, fields = "invites", f"{USERS_PATH}/invites", ()
    fixed = ("email", "role", "workspaces", "workspace_api_key_details")
    named_by = ("email",)

    def includes_row(self, _ground: GatewayState, row: JsonObject, _place: JsonObject | None) -> bool:
        """Leave out what is over."""
        return row["status"] == "pending"

    def export_row(self, ground: GatewayState, row: JsonObject) -> JsonObject:
        """Name workspaces by their slugs."""
        places = [{**one, "id": ground.slugs.get(one["id"], one["id"])} for one in row["workspaces"]]
        return {**super().export_row(ground, row), "workspaces": places}

    def fixed_values(self, thing: Mapping[str, Any]) -> JsonObject:
        """Give each scope once, in their order."""
        found = super().fixed_values(thing)
        if details := found.get("workspace_api_key_details"):
            found["workspace_api_key_details"] = {**details, "scopes": sorted(set(details.get("scopes", ())))}
        return found

    def can_skip_creation(self, ground: GatewayState, thing: JsonObject) -> bool:
        """Leave out who is there already."""
        return thing.get("email") in ground.ids or super().can_skip_creation(ground, thing)

    def create(self, ground: GatewayState, place: JsonObject | None, thing: JsonObject) -> JsonObject:
        """Invite."""
        return super().create(ground, place, {"workspaces": [], **thing})


class Members(ResourceKind):
    """People in a workspace."""

    name, path, fields, fixed, named_by = "members", WORKSPACES_PATH, ("role",), ("email",), ("email",)
    email_field = "email"

    def read_all(self, ground: GatewayState, place: JsonObject | None) -> list[JsonObject]:
        """Read them below their workspace."""
        rows = ground.remote.iter_rows(f"{WORKSPACES_PATH}/{place['id']}/users") if place else ()
        return [self.export_row(ground, row) for row in rows]

    def create(self, ground: GatewayState, place: JsonObject | None, thing: JsonObject) -> JsonObject:
        """Take somebody in."""
        member = {"id": ground.ids[thing["email"]], "role": thing.get("role", "member")}
        return ground.remote.request("POST", f"{WORKSPACES_PATH}/{(place or {})['id']}/users", {"users": [member]})

    def resource_path(self, there: JsonObject, place: JsonObject | None) -> str:
        """Say where one is found."""
        return f"{WORKSPACES_PATH}/{(place or {})['id']}/users/{there['id']}"


class SecretReferences(ResourceKind):
    """Where secrets are kept by others."""

    name, path = "secret_references", "/v1/secret-references"
    fields = (
        *("name", "description", "auth_config", "secret_path", "secret_key"),
        *("allow_all_workspaces", "allowed_workspaces", "tags"),
    )
    fixed = ("slug", "manager_type")
    secret_fields = ("auth_config",)

    def export_row(self, ground: GatewayState, row: JsonObject) -> JsonObject:
        """Read the whole of one, and name workspaces by their slugs."""
        shown = super().export_row(ground, ground.remote.request("GET", f"{self.path}/{row['id']}"))
        # Archived ones are in no state.
        places = [ground.slugs[one] for one in shown["allowed_workspaces"] if one in ground.slugs]
        return {**shown, "allowed_workspaces": places}

    def create(self, ground: GatewayState, place: JsonObject | None, thing: JsonObject) -> JsonObject:
        """Say either that all may use it, or who may."""
        return super().create(ground, place, _omit_unused_access_field(thing))

    def update(self, ground: GatewayState, place: JsonObject | None, there: JsonObject, changed: JsonObject) -> None:
        """Say either that all may use it, or who may."""
        super().update(ground, place, there, _omit_unused_access_field(changed))


def _omit_unused_access_field(thing: JsonObject) -> JsonObject:
    """Leave one of two fields out that exclude each other."""
    return omit_fields(thing, "allow_all_workspaces" if thing.get("allowed_workspaces") else "allowed_workspaces")


class Providers(ResourceKind):
    """Integrations made usable in a workspace."""

    name, path = "providers", "/v1/providers"
    fields = ("name", "note", "tags", *LIMIT_FIELDS)
    fixed = ("slug", "integration_id")

    def includes_row(self, ground: GatewayState, row: JsonObject, _place: JsonObject | None) -> bool:
        """Leave virtual keys out."""
        return row["integration_id"] in ground.integrations

    def create(self, ground: GatewayState, place: JsonObject | None, thing: JsonObject) -> JsonObject:
        """Make one, or change the one that the workspace was given when it was made."""
        there = (
            ground.remote.find(f"{self.path}/{thing['slug']}{self.workspace_query(place)}")
            if thing.get("slug")
            else None
        )
        if there is None:
            return super().create(ground, place, thing)
        self.update(ground, place, there, {name: thing[name] for name in self.fields if name in thing})
        return there

    def resource_path(self, there: JsonObject, place: JsonObject | None) -> str:
        """Say where one is found."""
        return f"{self.path}/{there['id']}{self.workspace_query(place)}"


class VirtualKeys(Providers):
    """Providers that brought their credential along."""

    name, path = "virtual_keys", "/v1/virtual-keys"
    fields = ("name", "key", "note", "model_config", "secret_mappings", *LIMIT_FIELDS)
    fixed = ("slug", "provider")
    secret_fields = ("key", "model_config")

    def includes_row(self, ground: GatewayState, row: JsonObject, place: JsonObject | None) -> bool:
        """Leave providers out."""
        return not super().includes_row(ground, row, place)

    def export_row(self, ground: GatewayState, row: JsonObject) -> JsonObject:
        """Show the credential masked."""
        return super().export_row(ground, {**row, "key": row["masked_api_key"] or ""})


class Configs(ResourceKind):
    """Routing configs, whose slugs are made by chance."""

    name, path = "configs", "/v1/configs"
    fields = ("name", "config", "status", "is_default")
    secret_fields = ("config",)
    keeps_slug = False

    def export_row(self, ground: GatewayState, row: JsonObject) -> JsonObject:
        """Read what is in one."""
        whole = ground.remote.request("GET", f"{self.path}/{row['id']}")
        ground.configs[whole["id"]] = whole["slug"]
        return {**super().export_row(ground, whole), "config": msgspec.json.decode(whole["config"])}

    def confirm_changes(self, ground: GatewayState, there: JsonObject, changed: JsonObject) -> JsonObject:
        """Ask the gateway about a config that says in clear what is shown masked."""
        if "config" not in changed or not count_masks(there["config"]):
            return changed
        try:
            said = ground.remote.request(
                "PUT", f"{self.path}/{there['id']}?dry_run=true", {"config": changed["config"]}
            )
        except RemoteError:
            # It is told when the change is made, with its place in the file.
            return changed
        return omit_fields(changed, "config") if said["version_id"] else changed

    def create(self, ground: GatewayState, place: JsonObject | None, thing: JsonObject) -> JsonObject:
        """Make one; it is archived afterwards."""
        body = {"name": thing["name"], "config": thing.get("config"), "isDefault": int(thing.get("is_default") or 0)}
        made = ground.remote.request("POST", self.path, {**body, **self.workspace_body(place)})
        if thing.get("status", "active") != "active":
            self.update(ground, place, made, {"status": thing["status"]})
        return made


class ApiKeys(ResourceKind):
    """Keys, of which nobody is told the text again."""

    name, path = "api_keys", "/v1/api-keys"
    fields = ("name", "description", "scopes", "defaults", "alert_emails", "rotation_policy", *LIMIT_FIELDS)
    fixed = ("type", "user")
    named_by = ("id", "name")
    email_field = "user"
    keeps_slug = False

    def includes_row(self, _ground: GatewayState, row: JsonObject, place: JsonObject | None) -> bool:
        """Leave those of other places out."""
        return row["workspace_id"] == (place["id"] if place else None)

    def export_row(self, ground: GatewayState, row: JsonObject) -> JsonObject:
        """Name the person by e-mail address and the config by its slug."""
        shown, defaults = super().export_row(ground, row), row["defaults"]
        config = ground.configs.get(defaults["config_id"], defaults["config_id"])
        shown["user"] = ground.emails.get(row["user_id"])
        return {**shown, "masked": row["key"], "defaults": {**defaults, "config_id": config}}

    @property
    def allowed_fields(self) -> tuple[str, ...]:
        """What may be written of one: its mask too, for people to recognise it."""
        return (*super().allowed_fields, "masked")

    def create(self, ground: GatewayState, place: JsonObject | None, thing: JsonObject) -> JsonObject:
        """Make one; its text is answered."""
        kind = str(thing.get("type") or ("workspace-service" if place else "organisation-service"))
        body = {name: thing[name] for name in self.fields if thing.get(name) is not None}
        if thing.get("user"):
            body["user_id"] = ground.ids[thing["user"]]
        return ground.remote.request(
            "POST", f"{self.path}/{kind.replace('-', '/')}", {**body, **self.workspace_body(place)}
        )

    def is_protected(self, ground: GatewayState, there: JsonObject) -> bool:
        """Keep the key that asks."""
        return there["masked"] == ground.own_key
