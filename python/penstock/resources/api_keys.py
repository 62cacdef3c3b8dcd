"""Keys: of the organisation, of a workspace, and of people; their text is shown when it is made and never again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta

from penstock.authorization import EVERYTHING, LEADING, SCOPES, needs
from penstock.errors import ForbiddenError, Problem
from penstock.ids import is_uuid, mask
from penstock.kit import keys, limits, members, shared_fields
from penstock.kit.keys import KEYS
from penstock.kit.limits import Limited, LimitsChange
from penstock.kit.listing import DEFAULT_SIZE, Page, Sizes
from penstock.kit.rotation import RotationPolicy, Transition, policy
from penstock.kit.session_revocation import end
from penstock.kit.shared_fields import UNSET, UnsetType, WorkspaceAsked
from penstock.kit.tenant_session import Desk, Work
from penstock.schemas import Done, Listed, given, life, next_reset, refuse, when, write_out
from penstock.store.tables import api_keys, configs, sessions, users, workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.store.tenant import Row

TAGS = ["API keys"]
MOST_IDS = 1000
# Lists and tables in one another that a value of metadata may be: it is told as one text.
DEEPEST = 8


def _any(verb: str) -> list[str]:
    return sorted({f"{resource.name}.{verb}" for resource in KEYS.values()})


class KeyDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What requests with the key have unless they say otherwise."""

    metadata: Annotated[
        dict[str, Any] | None,
        Meta(description="metadata of every request: texts; what is none is told as JSON, and nests 8 levels at most"),
    ] = None
    config_id: Annotated[str | None, Meta(description="config of every request: id or slug")] = None
    allow_config_override: Annotated[bool, Meta(description="whether a request may bring another config")] = True


Scopes = Annotated[list[str], Meta(min_length=1, description="what the key may do")]
DefaultsGiven = Annotated[
    KeyDefaults | UnsetType | None, Meta(description="defaults; they replace those of before, null takes them away")
]
EmailsGiven = Annotated[list[shared_fields.Email] | UnsetType | None, Meta(description="where alerts are sent")]
PolicyGiven = Annotated[RotationPolicy | UnsetType | None, Meta(description="rotation; null takes it away")]


class NewKey(Limited, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key to be made."""

    name: shared_fields.Name
    scopes: Scopes
    description: shared_fields.Note = None
    organisation_id: shared_fields.OwnOrganisation = None
    workspace_id: shared_fields.Workspace = None
    user_id: Annotated[str | None, Meta(description="id of the person whose key it is")] = None
    defaults: DefaultsGiven = UNSET
    alert_emails: EmailsGiven = UNSET
    rotation_policy: PolicyGiven = UNSET


class KeyChange(LimitsChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: shared_fields.MaybeName = UNSET
    description: shared_fields.MaybeNote = UNSET
    scopes: Annotated[Annotated[list[str], Meta(min_length=1)] | UnsetType, Meta(description="what it may do")] = UNSET
    defaults: DefaultsGiven = UNSET
    alert_emails: EmailsGiven = UNSET
    rotation_policy: PolicyGiven = UNSET


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to rotate."""

    key_transition_period_ms: Annotated[Transition | None, Meta(description="time in which both texts are good")] = None


class KeyMade(msgspec.Struct, frozen=True):
    """A new key."""

    id: shared_fields.Id
    key: Annotated[str, Meta(description="its text, which is not shown again")]
    object: shared_fields.Object = "api-key"


class KeyRotated(msgspec.Struct, frozen=True):
    """A key with a new text."""

    id: shared_fields.Id
    key: Annotated[str, Meta(description="its new text, which is not shown again")]
    key_transition_expires_at: Annotated[str, Meta(description="until when the old text is good too")]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key."""

    id: shared_fields.Id
    key: Annotated[str, Meta(description="both ends of its text")]
    name: shared_fields.Name
    description: shared_fields.Note
    type: Annotated[str, Meta(description="`organisation-service`, `workspace-service`, `workspace-user` …")]
    organisation_id: shared_fields.Organisation
    workspace_id: Annotated[str | None, Meta(description="id of the workspace it is for")]
    user_id: Annotated[str | None, Meta(description="id of the person whose key it is")]
    status: shared_fields.Life
    creation_mode: Annotated[str, Meta(description="`ui`, `api` or `auto`")]
    created_at: shared_fields.Moment
    last_updated_at: shared_fields.Changed
    rate_limits: limits.RatesShown
    usage_limits: limits.UsageShown
    reset_usage: shared_fields.ResetShown = None
    last_reset_at: shared_fields.MomentOrNone
    next_usage_reset_at: shared_fields.MomentOrNone
    scopes: Scopes
    defaults: Annotated[KeyDefaults, Meta(description="what requests with the key have unless they say otherwise")]
    alert_emails: Annotated[list[str] | None, Meta(description="where alerts are sent")]
    expires_at: shared_fields.MomentOrNone
    expiry_enforced: Annotated[int, Meta(description="1 where it ends by itself, at expires_at")]
    allow_config_override: Annotated[
        int | None, Meta(description="1 or 0 where its defaults hold a config; the same as there")
    ]
    api_key_defaults_id: Annotated[
        str | None, Meta(description="always null: its defaults are a part of the key and have no id")
    ] = None
    rotation_policy: Annotated[RotationPolicy | None, Meta(description="rotation")]
    last_rotated_at: shared_fields.MomentOrNone
    object: shared_fields.Object = "api-key"


Kind = Annotated[Literal["organisation", "workspace"], PathParameter(description="what the key is for")]
SubKind = Annotated[Literal["service", "user"], PathParameter(description="who uses it")]
KeyId = Annotated[str, PathParameter(description="id of the key")]
Ids = Annotated[str | None, QueryParameter(description="only these: ids with commas")]


@post(
    "/{kind:str}/{sub_kind:str}",
    status_code=200,
    guards=[needs(*_any("create"))],
    summary="Create API key",
    tags=TAGS,
)
async def create(kind: Kind, sub_kind: SubKind, data: JSONBody[NewKey], work: NamedDependency[Work]) -> KeyMade:
    """Make a key; it can do nothing that its maker cannot. One that a key makes has its end and bound config, or a sooner end.

    A key with limits makes none: each is held to its limits by itself, and what another one spends would not count.
    """
    type_ = f"{kind}-{sub_kind}"
    work.caller.stay_in(data.organisation_id)
    async with work.writing(data.workspace_id) as desk:
        desk.require(f"{KEYS[type_].name}.create")
        if kind == "organisation" and desk.workspace_id is not None:
            raise ForbiddenError("a key of the organisation is made without a workspace_id, and by one of its keys")
        workspace_id = desk.workspace if kind == "workspace" else None
        await _check_user(desk, data.user_id, workspace_id, is_users=sub_kind == "user")
        if workspace_id and data.user_id and not await keys.has_room(desk, workspace_id, data.user_id):
            why = "has as many keys in this workspace as its rule user_api_key_count allows"
            raise ForbiddenError(f"user_id {why}", [Problem("user_id", why)])
        text = desk.new_key()
        values = {
            "type": type_,
            "workspace_id": workspace_id,
            "user_id": data.user_id,
            "name": data.name,
            "description": data.description,
            "status": "active",
            "creation_mode": "ui" if work.caller.by == "session" else "api",
            "masked": mask(text),
            "created_by": work.caller.actor,
            "scopes": _scopes(desk, type_, data.scopes),
            "defaults": await _fallback(desk, type_),
            "rate_limits": None,
            "usage_limits": None,
            "alert_emails": None,
            # One that a stranger's token makes ends with it.
            "expires_at": desk.caller.ends_at,
            "rotation_policy": policy(None, await keys.enforced(desk, type_, workspace_id)),
            "last_reset_at": None,
            "last_rotated_at": None,
            **await _values(desk, type_, data),
        }
        values |= await keys.by_rules(desk, values)
        await keys.refuse_beyond(desk, values)
        row = await KEYS[type_].add(desk, values)
        await keys.add_text(desk, row["id"], text)
        return KeyMade(row["id"], text)


@get("/", guards=[needs(*_any("list"))], summary="List API keys", tags=TAGS)
async def index(
    work: NamedDependency[Work], page: NamedDependency[Page], workspace_id: WorkspaceAsked = None, ids: Ids = None
) -> Listed[Key]:
    """List the keys that the caller may know of; where `ids` are given and no size, a page holds all of them."""
    async with work.reading(workspace_id) as desk:
        granted = desk.granted
        conditions = [api_keys.c.type.in_([kind for kind, kept in KEYS.items() if f"{kept.name}.list" in granted])]
        if ids is not None:
            wanted = [part.strip() for part in ids.split(",") if part.strip()]
            if bad := [part for part in wanted if not is_uuid(part)]:
                raise refuse("ids", f"{bad[0]!r} is not allowed: expected ids with commas")
            if len(wanted) > MOST_IDS:
                raise refuse("ids", f"holds {len(wanted)} ids: at most {MOST_IDS} are allowed")
            conditions.append(api_keys.c.id.in_(wanted))
            # Who asks for so many, and for no size, wants them all.
            page = page.within(Sizes(max(DEFAULT_SIZE, len(wanted))))
        total, rows = await KEYS["workspace-service"].page(desk, page, conditions)
        return Listed(total, [_shown(row) for row in rows])


@get("/{key_id:str}", guards=[needs(*_any("read"))], summary="Get API key", tags=TAGS)
async def show(key_id: KeyId, work: NamedDependency[Work]) -> Key:
    """Give a key, its text masked."""
    async with work.reading() as desk:
        return _shown(await _key(desk, key_id, "read"))


@put("/{key_id:str}", guards=[needs(*_any("update"))], summary="Update API key", tags=TAGS)
async def update(key_id: KeyId, data: JSONBody[KeyChange], work: NamedDependency[Work]) -> Done:
    """Change a key; what is left out stays."""
    async with work.writing() as desk:
        row = await _key(desk, key_id, "update")
        values = {name: value for name, value in given(data).items() if name in {"name", "description"}}
        if data.scopes is not UNSET:
            values["scopes"] = _scopes(desk, row["type"], data.scopes)
        values |= await _values(desk, row["type"], data, row)
        values |= await keys.by_rules(desk, values, row)
        await keys.refuse_beyond(desk, values, row)
        await KEYS[row["type"]].change(desk, row, values)
        return Done()


@delete("/{key_id:str}", status_code=200, guards=[needs(*_any("delete"))], summary="Delete API key", tags=TAGS)
async def remove(key_id: KeyId, work: NamedDependency[Work]) -> Done:
    """Delete a key: from here on it is not known."""
    async with work.writing() as desk:
        row = await _key(desk, key_id, "delete")
        await end(desk, sessions.c.api_key_id == row["id"])
        await KEYS[row["type"]].remove(desk, row)
        return Done()


@post("/{key_id:str}/rotate", status_code=200, guards=[needs(*_any("rotate"))], summary="Rotate API key", tags=TAGS)
async def rotate(key_id: KeyId, work: NamedDependency[Work], data: JSONBody[Rotation | None] = None) -> KeyRotated:
    """Give a key a new text; the old one is good until the transition is over, and there are never three.

    Where the schedule has rotated the key and nobody has asked for the new text yet, this gives that one.
    """
    async with work.writing() as desk:
        row = await _key(desk, key_id, "rotate")
        # Who learns the text can do what the key can.
        _scopes(desk, row["type"], row["scopes"])
        if row["id"] != desk.caller.id:
            await keys.refuse_beyond(desk, row)
        text, end = await keys.rotate(desk, row, data.key_transition_period_ms if data else None)
        return KeyRotated(row["id"], text, when(end))


async def _key(desk: Desk, key_id: str, verb: str) -> Row:
    """Find a key, and see whether the caller may do that to one of its type, where it is."""
    row = await KEYS["workspace-service"].get(desk, key_id)
    scope = f"{KEYS[row['type']].name}.{verb}"
    if scope not in desk.caller.grants(row["workspace_id"]):
        raise ForbiddenError(f"this key may not do that: it needs {scope}")
    desk.workspace_id = row["workspace_id"]
    return row


def _scopes(desk: Desk, type_: str, asked: Iterable[str]) -> list[str]:
    """Check that the type may hold the scopes, and that the caller may give them."""
    for index, scope in enumerate(asked):
        if scope not in SCOPES[type_]:
            why = f"is not for keys of the type {type_}" if scope in EVERYTHING else "is not known"
            raise refuse(f"scopes[{index}]", f"{scope!r} {why}")
        desk.may_give([scope], desk.workspace_id)
    return sorted(set(asked))


async def _check_user(desk: Desk, user_id: str | None, workspace_id: str | None, *, is_users: bool) -> None:
    if not is_users:
        if user_id is not None:
            raise refuse("user_id", "is only for keys of people")
        return
    if user_id is None:
        raise refuse("user_id", "is needed for the key of a person")
    user = await desk.refer("user_id", users, user_id, "user of this organisation")
    # Who leads the organisation is an admin of all workspaces.
    is_inside = user["role"] in LEADING or workspace_id is None
    if not is_inside and await members.find(desk, workspace_id or "", user_id) is None:
        raise refuse("user_id", f"{user_id!r} is no member of this workspace")


async def _values(desk: Desk, type_: str, data: NewKey | KeyChange, row: Row | None = None) -> dict[str, Any]:
    """Check what was sent of limits, defaults, expiry and rotation, and write it down."""
    values = limits.sent(data, limits.UNITS_OF_KEYS, row)
    if data.alert_emails is not UNSET:
        values["alert_emails"] = data.alert_emails
    if data.defaults is not UNSET:
        asked = data.defaults or KeyDefaults()
        written = msgspec.to_builtins(asked)
        for name, value in (asked.metadata or {}).items():
            if _nests(value) > DEEPEST:
                raise refuse(f"defaults.metadata.{name}", f"nests deeper than {DEEPEST} levels")
        if asked.config_id:
            here = configs.c.workspace_id == desk.workspace_id
            had: dict[str, Any] = row["defaults"] if row else {}
            config = await desk.refer_to_config("defaults.config_id", asked.config_id, had.get("config_id"), here)
            written["config_id"] = config["id"]
        values["defaults"] = {**(await _fallback(desk, type_) if row is None else {}), **_some(written)}
    if data.rotation_policy is not UNSET:
        before = row["rotation_policy"] if row else None
        cadence = await keys.enforced(desk, type_, desk.workspace_id)
        values["rotation_policy"] = policy(data.rotation_policy, cadence, before)
    return values


def _nests(value: object, above: int = 0) -> int:
    """Count the levels of a value, as far as it matters."""
    if not isinstance(value, dict | list) or above > DEEPEST:
        return above
    inner = cast("dict[str, object]", value).values() if isinstance(value, dict) else cast("list[object]", value)
    return max((_nests(one, above + 1) for one in inner), default=above + 1)


def _some(written: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in written.items() if value is not None}


async def _fallback(desk: Desk, type_: str) -> dict[str, Any]:
    """Give the defaults that the workspace has for new keys of people."""
    if type_ != "workspace-user":
        return {}
    row = await desk.find(workspaces, desk.workspace)
    config = row["defaults"].get("user_api_key_config") if row else None
    return {"config_id": config} if config else {}


def _shown(row: Row) -> Key:
    defaults = KeyDefaults(**row["defaults"])
    return write_out(
        Key,
        row,
        key=row["masked"],
        status=life(row),
        next_usage_reset_at=next_reset(row["usage_limits"] or {}),
        defaults=defaults,
        expiry_enforced=int(row["expires_at"] is not None),
        allow_config_override=int(defaults.allow_config_override) if defaults.config_id else None,
    )


routes = [create, index, show, update, remove, rotate]
