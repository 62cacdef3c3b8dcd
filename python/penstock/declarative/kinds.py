"""The kinds of things that a state holds: how each is read, made, changed and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.declarative.document import Thing, bare, changes, is_over, listed, masks, without
from penstock.ids import OTHER_NAMES, mask
from penstock.remote import RemoteError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.remote import Remote

ORGANISATION = "/v1/admin/organisation"
WORKSPACES = "/v1/admin/workspaces"
USERS = "/v1/admin/users"
LIMITS = ("usage_limits", "rate_limits", "expires_at")
# The fields that name a provider.
PROVIDER = frozenset({"provider", "ai_provider_id"})
WORKSPACE_FIELDS = ("name", "description", "defaults", "settings", "security_settings", "usage_limits", "rate_limits")


class Ground:
    """One gateway: how it is asked, and what its ids are called."""

    def __init__(self, remote: Remote, key: str = "") -> None:
        """Learn the names."""
        self.remote = remote
        # Of the key that asks: it is never taken away by what it asks for.
        self.own_key = mask(key)
        self.workspaces = list(remote.all_of(WORKSPACES))
        self.slugs = {row["id"]: row["slug"] for row in self.workspaces}
        self.users = list(remote.all_of(USERS))
        self.emails = {row["id"]: row["email"] for row in self.users}
        self.ids = {email: user_id for user_id, email in self.emails.items()}
        self.references = {row["id"]: row["slug"] for row in remote.all_of("/v1/secret-references")}
        # Those that a virtual key brought along are not listed.
        shared = {row["id"]: row["slug"] for row in remote.all_of("/v1/integrations")}
        self.integrations = set(shared.values())
        # What may be named by its id where it is written by its slug.
        self.named = self.slugs | shared
        self.configs: dict[str, str] = {}

    def mappings(self, row: Mapping[str, Any]) -> list[Thing]:
        """Name the secrets of a row by their slugs."""
        found = listed(row, "secret_mappings")
        return [
            {**one, "secret_reference_id": self.references.get(one["secret_reference_id"], one["secret_reference_id"])}
            for one in found
        ]


class Kind:
    """What is kept of one kind of thing; the plain way to treat it."""

    name: str
    path: str
    fields: tuple[str, ...]
    # Chosen once.
    fixed: tuple[str, ...] = ("slug",)
    # Of these what is not refused where it is another by now: it is found by it, or it passes from one to the next.
    passes: tuple[str, ...] = ("slug",)
    # Places that hold credentials.
    secret: tuple[str, ...] = ()
    named_by: tuple[str, ...] = ("slug", "name")
    # Whether a new one gets the slug that is written.
    keeps_slug = True
    # The field that names a person by e-mail address, who must be a user already.
    person = ""

    @property
    def known(self) -> tuple[str, ...]:
        """What may be written of one."""
        return ("id", *(name for name in self.fixed if name not in self.fields), *self.fields)

    def chosen(self, thing: Mapping[str, Any]) -> Thing:
        """Give what was chosen once, as it is kept."""
        found = {name: thing[name] for name in self.fixed if name in thing and name not in self.passes}
        return {name: OTHER_NAMES.get(text, text) if name in PROVIDER else text for name, text in found.items()}

    def called(self, thing: Mapping[str, Any]) -> str:
        """Name one, as plans do."""
        return str(thing.get("name") or next((thing[name] for name in self.named_by if thing.get(name)), "?"))

    def identified_by(self, thing: Mapping[str, Any]) -> tuple[str, ...]:
        """Say by which fields the one that is meant is found: what keeps its slug is that alone."""
        return ("slug",) if self.keeps_slug and thing.get("slug") else self.named_by

    def read(self, ground: Ground, place: Thing | None) -> list[Thing]:
        """Give all that there are in a workspace, or in the organisation itself."""
        rows = ground.remote.all_of(self.path + self.inside(place))
        return [self.written(ground, row) for row in rows if self.is_one(ground, row, place)]

    def is_one(self, _ground: Ground, _row: Thing, _place: Thing | None) -> bool:
        """Whether a listed row is one of these."""
        return True

    def written(self, ground: Ground, row: Thing) -> Thing:
        """Write one down."""
        shown = {name: row[name] for name in self.known if name in row}
        shown |= {name: bare(shown[name]) for name in ("usage_limits", "rotation_policy") if name in shown}
        return {**shown, "secret_mappings": ground.mappings(row)} if "secret_mappings" in shown else shown

    def differs(self, thing: Mapping[str, Any], there: Mapping[str, Any], *, prune: bool) -> Thing:  # noqa: ARG002 - for kinds that hold lists
        """Give what is to be changed, and credentials along with what may say where they go: elsewhere they are needed anew."""
        changed = changes({name: thing[name] for name in self.fields if name in thing}, there)
        if changed.keys() & set(self.secret):
            changed |= {name: thing[name] for name in self.secret if thing.get(name) and not masks(thing[name])}
        return changed

    def compared(self, _ground: Ground, _there: Thing, changed: Thing) -> Thing:
        """Leave out of what is to be changed what only the gateway can compare, if it is as it was."""
        return changed

    def is_needless(self, _ground: Ground, thing: Thing) -> bool:
        """Whether one that is not there need not be made."""
        return is_over(thing)

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Make one, and give what was answered."""
        body = {name: thing[name] for name in self.known if name != "id" and thing.get(name) is not None}
        return ground.remote.ask("POST", self.path, {**body, **self.home(place)})

    def change(self, ground: Ground, place: Thing | None, there: Thing, changed: Thing) -> None:
        """Change one."""
        ground.remote.ask("PUT", self.at(there, place), changed)

    def remove(self, ground: Ground, place: Thing | None, there: Thing) -> None:
        """Remove one."""
        ground.remote.ask("DELETE", self.at(there, place))

    def stays(self, _ground: Ground, _there: Thing) -> bool:
        """Whether one is never removed."""
        return False

    def home(self, place: Thing | None) -> Thing:
        """Say in a body where something is."""
        return {"workspace_id": place["id"]} if place else {}

    def inside(self, place: Thing | None) -> str:
        """Say in a query where something is."""
        return f"?workspace_id={place['id']}" if place else ""

    def at(self, there: Thing, _place: Thing | None) -> str:
        """Say where one is found."""
        return f"{self.path}/{there['id']}"


class Users(Kind):
    """People, who come by invitation alone."""

    name, path, fields, fixed, named_by = "users", USERS, ("role",), ("email",), ("email",)
    person = "email"

    def stays(self, _ground: Ground, there: Thing) -> bool:
        """Keep the owner."""
        return there["role"] == "owner"


class Invites(Kind):
    """Invitations that were not answered yet."""

    name, path, fields = "invites", f"{USERS}/invites", ()
    fixed = ("email", "role", "workspaces", "workspace_api_key_details")
    named_by = ("email",)

    def is_one(self, _ground: Ground, row: Thing, _place: Thing | None) -> bool:
        """Leave out what is over."""
        return row["status"] == "pending"

    def written(self, ground: Ground, row: Thing) -> Thing:
        """Name workspaces by their slugs."""
        places = [{**one, "id": ground.slugs.get(one["id"], one["id"])} for one in row["workspaces"]]
        return {**super().written(ground, row), "workspaces": places}

    def chosen(self, thing: Mapping[str, Any]) -> Thing:
        """Give each scope once, in their order."""
        found = super().chosen(thing)
        if details := found.get("workspace_api_key_details"):
            found["workspace_api_key_details"] = {**details, "scopes": sorted(set(details.get("scopes", ())))}
        return found

    def is_needless(self, ground: Ground, thing: Thing) -> bool:
        """Leave out who is there already."""
        return thing.get("email") in ground.ids or super().is_needless(ground, thing)

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Invite."""
        return super().make(ground, place, {"workspaces": [], **thing})


class Members(Kind):
    """People in a workspace."""

    name, path, fields, fixed, named_by = "members", WORKSPACES, ("role",), ("email",), ("email",)
    person = "email"

    def read(self, ground: Ground, place: Thing | None) -> list[Thing]:
        """Read them below their workspace."""
        rows = ground.remote.all_of(f"{WORKSPACES}/{place['id']}/users") if place else ()
        return [self.written(ground, row) for row in rows]

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Take somebody in."""
        member = {"id": ground.ids[thing["email"]], "role": thing.get("role", "member")}
        return ground.remote.ask("POST", f"{WORKSPACES}/{(place or {})['id']}/users", {"users": [member]})

    def at(self, there: Thing, place: Thing | None) -> str:
        """Say where one is found."""
        return f"{WORKSPACES}/{(place or {})['id']}/users/{there['id']}"


class References(Kind):
    """Where secrets are kept by others."""

    name, path = "secret_references", "/v1/secret-references"
    fields = (
        *("name", "description", "auth_config", "secret_path", "secret_key"),
        *("allow_all_workspaces", "allowed_workspaces", "tags"),
    )
    fixed = ("slug", "manager_type")
    secret = ("auth_config",)

    def written(self, ground: Ground, row: Thing) -> Thing:
        """Read the whole of one, and name workspaces by their slugs."""
        shown = super().written(ground, ground.remote.ask("GET", f"{self.path}/{row['id']}"))
        # Archived ones are in no state.
        places = [ground.slugs[one] for one in shown["allowed_workspaces"] if one in ground.slugs]
        return {**shown, "allowed_workspaces": places}

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Say either that all may use it, or who may."""
        return super().make(ground, place, _either(thing))

    def change(self, ground: Ground, place: Thing | None, there: Thing, changed: Thing) -> None:
        """Say either that all may use it, or who may."""
        super().change(ground, place, there, _either(changed))


def _either(thing: Thing) -> Thing:
    """Leave one of two fields out that exclude each other."""
    return without(thing, "allow_all_workspaces" if thing.get("allowed_workspaces") else "allowed_workspaces")


class Providers(Kind):
    """Integrations made usable in a workspace."""

    name, path = "providers", "/v1/providers"
    fields = ("name", "note", "tags", *LIMITS)
    fixed = ("slug", "integration_id")

    def is_one(self, ground: Ground, row: Thing, _place: Thing | None) -> bool:
        """Leave virtual keys out."""
        return row["integration_id"] in ground.integrations

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Make one, or change the one that the workspace was given when it was made."""
        there = ground.remote.find(f"{self.path}/{thing['slug']}{self.inside(place)}") if thing.get("slug") else None
        if there is None:
            return super().make(ground, place, thing)
        self.change(ground, place, there, {name: thing[name] for name in self.fields if name in thing})
        return there

    def at(self, there: Thing, place: Thing | None) -> str:
        """Say where one is found."""
        return f"{self.path}/{there['id']}{self.inside(place)}"


class VirtualKeys(Providers):
    """Providers that brought their credential along."""

    name, path = "virtual_keys", "/v1/virtual-keys"
    fields = ("name", "key", "note", "model_config", "secret_mappings", *LIMITS)
    fixed = ("slug", "provider")
    secret = ("key", "model_config")

    def is_one(self, ground: Ground, row: Thing, place: Thing | None) -> bool:
        """Leave providers out."""
        return not super().is_one(ground, row, place)

    def written(self, ground: Ground, row: Thing) -> Thing:
        """Show the credential masked."""
        return super().written(ground, {**row, "key": row["masked_api_key"] or ""})


class Configs(Kind):
    """Routing configs, whose slugs are made by chance."""

    name, path = "configs", "/v1/configs"
    fields = ("name", "config", "status", "is_default")
    secret = ("config",)
    keeps_slug = False

    def written(self, ground: Ground, row: Thing) -> Thing:
        """Read what is in one."""
        whole = ground.remote.ask("GET", f"{self.path}/{row['id']}")
        ground.configs[whole["id"]] = whole["slug"]
        return {**super().written(ground, whole), "config": msgspec.json.decode(whole["config"])}

    def compared(self, ground: Ground, there: Thing, changed: Thing) -> Thing:
        """Ask the gateway about a config that says in clear what is shown masked."""
        if "config" not in changed or not masks(there["config"]):
            return changed
        try:
            said = ground.remote.ask("PUT", f"{self.path}/{there['id']}?dry_run=true", {"config": changed["config"]})
        except RemoteError:
            # It is told when the change is made, with its place in the file.
            return changed
        return without(changed, "config") if said["version_id"] else changed

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Make one; it is archived afterwards."""
        body = {"name": thing["name"], "config": thing.get("config"), "isDefault": int(thing.get("is_default") or 0)}
        made = ground.remote.ask("POST", self.path, {**body, **self.home(place)})
        if thing.get("status", "active") != "active":
            self.change(ground, place, made, {"status": thing["status"]})
        return made


class ApiKeys(Kind):
    """Keys, of which nobody is told the text again."""

    name, path = "api_keys", "/v1/api-keys"
    fields = ("name", "description", "scopes", "defaults", "alert_emails", "rotation_policy", *LIMITS)
    fixed = ("type", "user")
    named_by = ("id", "name")
    person = "user"
    keeps_slug = False

    def is_one(self, _ground: Ground, row: Thing, place: Thing | None) -> bool:
        """Leave those of other places out."""
        return row["workspace_id"] == (place["id"] if place else None)

    def written(self, ground: Ground, row: Thing) -> Thing:
        """Name the person by e-mail address and the config by its slug."""
        shown, defaults = super().written(ground, row), row["defaults"]
        config = ground.configs.get(defaults["config_id"], defaults["config_id"])
        shown["user"] = ground.emails.get(row["user_id"])
        return {**shown, "masked": row["key"], "defaults": {**defaults, "config_id": config}}

    @property
    def known(self) -> tuple[str, ...]:
        """What may be written of one: its mask too, for people to recognise it."""
        return (*super().known, "masked")

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Make one; its text is answered."""
        kind = str(thing.get("type") or ("workspace-service" if place else "organisation-service"))
        body = {name: thing[name] for name in self.fields if thing.get(name) is not None}
        if thing.get("user"):
            body["user_id"] = ground.ids[thing["user"]]
        return ground.remote.ask("POST", f"{self.path}/{kind.replace('-', '/')}", {**body, **self.home(place)})

    def stays(self, ground: Ground, there: Thing) -> bool:
        """Keep the key that asks."""
        return there["masked"] == ground.own_key
