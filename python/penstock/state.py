"""The whole state of an organisation as one document: written down, compared with what is there, and applied."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.errors import Problem, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.remote import Remote

Thing = dict[str, Any]

VERSION = 1
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
MASKED = "*****"
ORGANISATION = "/v1/admin/organisation"
WORKSPACES = "/v1/admin/workspaces"
# What a policy says of itself and nobody chose.
DERIVED = ("next_rotation_at", "next_usage_reset_at", "status")


class Kind(NamedTuple):
    """What is kept of one kind of thing in a workspace, in the order in which things are made."""

    name: str
    path: str
    made_at: str
    named_by: tuple[str, ...]
    fields: tuple[str, ...]
    # Chosen once.
    fixed: tuple[str, ...] = ()


KINDS = (
    Kind("members", "users", "", ("email",), ("role",)),
    Kind(
        "virtual_keys",
        "/v1/virtual-keys",
        "/v1/virtual-keys",
        ("slug", "name"),
        ("name", "key", "note", "model_config", "usage_limits", "rate_limits", "expires_at"),
        ("provider", "slug"),
    ),
    Kind("configs", "/v1/configs", "/v1/configs", ("slug", "name"), ("name", "config")),
    Kind(
        "api_keys",
        "/v1/api-keys",
        "/v1/api-keys/workspace",
        ("id", "name"),
        (
            "name",
            "description",
            "scopes",
            "defaults",
            "rate_limits",
            "usage_limits",
            "alert_emails",
            "expires_at",
            "rotation_policy",
        ),
        ("type", "user_id"),
    ),
)
WORKSPACE_FIELDS = ("name", "description", "defaults", "settings", "usage_limits", "rate_limits")


class Step(NamedTuple):
    """One thing to be done, as the plan says it."""

    sign: str
    what: str
    do: Callable[[], None]


def export(remote: Remote) -> Thing:
    """Write everything down; credentials stay masked."""
    return {
        "version": VERSION,
        "organisation": {
            "settings": _without(remote.ask("GET", f"{ORGANISATION}/settings"), "object"),
            "defaults": _without(remote.ask("GET", f"{ORGANISATION}/defaults"), "object"),
        },
        "workspaces": [_exported(remote, row) for row in remote.all_of(WORKSPACES)],
    }


class Plan:
    """What must be done so that what is there becomes what is written."""

    def __init__(self, remote: Remote, wanted: Mapping[str, Any], environ: Mapping[str, str], *, prune: bool) -> None:
        """Compare; nothing is changed."""
        self._remote = remote
        self._prune = prune
        self.steps: list[Step] = []
        # Texts of keys that were made, to be shown once.
        self.texts: dict[str, str] = {}
        # Slugs that things were given in the place of those that are written.
        self._renamed: dict[str, str] = {}
        self._problems: list[Problem] = []
        problems = self._problems
        resolved = cast("Thing", _resolved("", dict(wanted), environ, problems))
        if resolved.get("version") != VERSION:
            problems.append(Problem("version", f"must be {VERSION}"))
        problems += _missing(resolved)
        self._refuse()
        self._compare(resolved)
        self._refuse()

    def _refuse(self) -> None:
        if self._problems:
            message = "the state cannot be applied:"
            raise SettingsError(message, self._problems)

    def _compare(self, wanted: Thing) -> None:
        there = export(self._remote)
        parts = cast("dict[str, Thing]", wanted.get("organisation") or {})
        for part, values in parts.items():
            changes = _changes(values, there["organisation"].get(part, {}))
            if changes:
                self._add(
                    "~", f"organisation {part}: {', '.join(changes)}", self._put(f"{ORGANISATION}/{part}", changes)
                )
        left = list(there["workspaces"])
        for workspace in _listed(wanted, "workspaces"):
            found = _match(workspace, left, ("slug", "name"))
            if found:
                left.remove(found)
            self._workspace(workspace, found)
        for gone in left if self._prune else []:
            if not gone.get("is_default"):
                body = {"name": gone["name"], "force_delete": True}
                self._add("-", f"workspace {gone['name']}", self._delete(f"{WORKSPACES}/{gone['id']}", body))

    def _workspace(self, wanted: Thing, found: Thing | None) -> None:
        place: Thing = {"id": found["id"]} if found else {}
        name = wanted["name"]
        plain = {field: wanted[field] for field in WORKSPACE_FIELDS if field in wanted}
        # A new workspace has no config yet that its keys could have by default.
        late = _without(plain.get("defaults") or {}, "user_api_key_config")
        if found is None:
            body = {**plain, "defaults": late} if "defaults" in plain else plain
            self._add("+", f"workspace {name}", lambda: place.update(self._remote.ask("POST", WORKSPACES, body)))
        for kind in KINDS:
            self._things(kind, wanted, found, place)
        changes = _changes(cast("Thing", _renamed(plain, self._renamed)), found or {**plain, "defaults": late})
        if changes:
            path = f"{WORKSPACES}/{{}}"
            self._add(
                "~",
                f"workspace {name}: {', '.join(changes)}",
                lambda: self._send("PUT", path.format(place["id"]), changes),
            )

    def _things(self, kind: Kind, wanted: Thing, found: Thing | None, place: Thing) -> None:
        left = list(found[kind.name]) if found else []
        for thing in _listed(wanted, kind.name):
            there = _match(thing, left, kind.named_by)
            label = f"{wanted['name']} / {kind.name} {_label(thing, kind)}"
            if there is None:
                if MASKED in str(thing.get("key", "")):
                    message = "is masked, and there is none yet that it could stand for; hint: key: ${NAME}"
                    self._problems.append(Problem(f"{label}.key", message))
                self._add("+", label, self._make(kind, thing, place, label))
                continue
            left.remove(there)
            if thing.get("slug") and there.get("slug"):
                self._renamed[thing["slug"]] = there["slug"]
            fields = {field: thing[field] for field in kind.fields if field in thing}
            if changes := _changes(cast("Thing", _renamed(fields, self._renamed)), there):
                self._add("~", f"{label}: {', '.join(changes)}", self._change(kind, there, place, changes))
        for gone in left if self._prune else []:
            label = f"{wanted['name']} / {kind.name} {_label(gone, kind)}"
            self._add("-", label, lambda gone=gone: self._send("DELETE", _path(kind, gone, place), None))

    def _make(self, kind: Kind, thing: Thing, place: Thing, label: str) -> Callable[[], None]:
        def do() -> None:
            body = {name: thing[name] for name in (*kind.fields, *kind.fixed) if thing.get(name) is not None}
            if kind.name == "members":
                self._send("POST", f"{WORKSPACES}/{place['id']}/users", {"users": [self._member(thing)]})
                return
            path = kind.made_at
            if kind.name == "api_keys":
                path += f"/{str(body.pop('type', 'workspace-service')).rpartition('-')[2]}"
            made = self._send("POST", path, {**body, "workspace_id": place["id"]})
            if text := made.get("key"):
                self.texts[label] = text
            if (slug := made.get("slug")) and thing.get("slug"):
                self._renamed[thing["slug"]] = slug

        return do

    def _member(self, thing: Thing) -> Thing:
        found = self._remote.ask("GET", f"/v1/admin/users?email={thing['email']}")["data"]
        if not found:
            message = f"{thing['email']} is no user of the organisation; hint: invite them first"
            raise SettingsError(message)
        return {"id": found[0]["id"], "role": thing.get("role", "member")}

    def _change(self, kind: Kind, there: Thing, place: Thing, changes: Thing) -> Callable[[], None]:
        def do() -> None:
            self._send("PUT", _path(kind, there, place), changes)

        return do

    def _put(self, path: str, body: Thing) -> Callable[[], None]:
        return lambda: cast("None", self._send("PUT", path, body))

    def _delete(self, path: str, body: Thing) -> Callable[[], None]:
        return lambda: cast("None", self._send("DELETE", path, body))

    def _send(self, method: str, path: str, body: Thing | None) -> Thing:
        return self._remote.ask(method, path, cast("Thing", _renamed(body, self._renamed)) if body else body)

    def _add(self, sign: str, what: str, do: Callable[[], Any]) -> None:
        self.steps.append(Step(sign, what, do))


def _exported(remote: Remote, row: Thing) -> Thing:
    place = f"?workspace_id={row['id']}"
    slugs: dict[str, str] = {}
    shown = {name: row[name] for name in ("id", "slug", "is_default", *WORKSPACE_FIELDS)}
    shown["defaults"] = _without(row["defaults"] or {}, "is_default", "object")
    shown["usage_limits"] = [_without(limit, *DERIVED) for limit in _listed(row, "usage_limits")] or None
    members = remote.all_of(f"{WORKSPACES}/{row['id']}/users")
    shown["members"] = [{name: member[name] for name in ("id", "email", "role")} for member in members]
    shown["virtual_keys"] = [_virtual_key(given) for given in remote.all_of(f"/v1/virtual-keys{place}")]
    configs: list[Thing] = []
    for listed in remote.all_of(f"/v1/configs{place}"):
        config = remote.ask("GET", f"/v1/configs/{listed['id']}")
        slugs[config["id"]] = config["slug"]
        content = msgspec.json.decode(config["config"])
        configs.append({**{name: config[name] for name in ("id", "slug", "name")}, "config": content})
    shown["configs"] = configs
    rows = [key for key in remote.all_of(f"/v1/api-keys{place}") if key["workspace_id"] == row["id"]]
    shown["api_keys"] = [_api_key(key, slugs) for key in rows]
    return shown


def _virtual_key(row: Thing) -> Thing:
    kind = next(kind for kind in KINDS if kind.name == "virtual_keys")
    shown = {name: row[name] for name in ("id", *kind.fixed, *kind.fields) if name in row}
    limits = row["usage_limits"]
    return {**shown, "key": row["masked_api_key"] or "", "usage_limits": limits and _without(limits, *DERIVED)}


def _api_key(row: Thing, slugs: Mapping[str, str]) -> Thing:
    kind = next(kind for kind in KINDS if kind.name == "api_keys")
    shown = {name: row[name] for name in ("id", *kind.fixed, *kind.fields)}
    for name in ("rotation_policy", "usage_limits"):
        shown[name] = row[name] and _without(row[name], *DERIVED)
    defaults = row["defaults"]
    return {**shown, "defaults": {**defaults, "config_id": slugs.get(defaults["config_id"], defaults["config_id"])}}


def _listed(row: Mapping[str, Any], name: str) -> list[Thing]:
    return cast("list[Thing]", row.get(name) or [])


def _without(row: Mapping[str, Any], *names: str) -> Thing:
    return {name: value for name, value in row.items() if name not in names}


def _changes(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> Thing:
    """Give what differs; nothing and null are the same, and so is what was left out within a field."""
    return {name: value for name, value in wanted.items() if _plain(value) != _plain(there.get(name))}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        inner = {name: _plain(item) for name, item in cast("Thing", value).items() if name not in DERIVED}
        return {name: item for name, item in inner.items() if item not in (None, {}, [])} or None
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[object]", value)] or None
    return value or None if isinstance(value, str) else value


def _match(thing: Mapping[str, Any], there: list[Thing], named_by: tuple[str, ...]) -> Thing | None:
    for name in named_by:
        found = [row for row in there if thing.get(name) is not None and row.get(name) == thing[name]]
        if len(found) == 1:
            return found[0]
    return None


def _label(thing: Mapping[str, Any], kind: Kind) -> str:
    return str(thing.get("name") or next((thing[name] for name in kind.named_by if thing.get(name)), "?"))


def _path(kind: Kind, there: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    if kind.name == "members":
        return f"{WORKSPACES}/{place['id']}/users/{there['id']}"
    own = "" if kind.name in {"api_keys", "configs"} else f"?workspace_id={place['id']}"
    return f"{kind.path}/{there['id']}{own}"


def _resolved(path: str, value: object, environ: Mapping[str, str], problems: list[Problem]) -> object:
    """Put what the environment says in the place of `${NAME}`."""
    if isinstance(value, dict):
        items = cast("Thing", value).items()
        return {name: _resolved(f"{path}.{name}".lstrip("."), item, environ, problems) for name, item in items}
    if isinstance(value, list):
        listed = cast("list[object]", value)
        return [_resolved(f"{path}[{index}]", item, environ, problems) for index, item in enumerate(listed)]
    if isinstance(value, str) and (reference := REFERENCE.fullmatch(value)):
        if found := environ.get(reference[1]):
            return found
        problems.append(Problem(path, f"the environment variable {reference[1]!r} is not set"))
    return value


def _missing(wanted: Thing) -> Iterator[Problem]:
    for index, workspace in enumerate(_listed(wanted, "workspaces")):
        if not workspace.get("name"):
            yield Problem(f"workspaces[{index}].name", "is needed")


def _renamed(value: object, names: Mapping[str, str]) -> object:
    if isinstance(value, dict):
        return {name: _renamed(item, names) for name, item in cast("Thing", value).items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in cast("list[object]", value)]
    return names.get(value, value) if isinstance(value, str) else value
