"""Secrets of API keys: creation and rotation. After a rotation, the old secret stays valid for a transition period."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, cast, or_, select

from penstock import limit_fields as limits
from penstock.access import roles
from penstock.access.default_metadata import check_default_metadata
from penstock.access.tenant_rules import auto_creates_keys, effective_rules, organisation_rules
from penstock.authorization import SCOPES_BY_KEY_TYPE
from penstock.errors import ConflictError, ForbiddenError, Problem
from penstock.guardrails.documents import DEFAULT_FIELDS
from penstock.ids import mask_secret, new_id, sha256_hex
from penstock.kit.resource import Resource
from penstock.organisation.rotation import SHORTEST_TRANSITION, build_policy, check_transition_length, next_rotation
from penstock.schemas import field_error, format_timestamp, now, to_milliseconds
from penstock.store.snapshot_sections import section_name
from penstock.store.tables import api_keys, key_digests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

KEY_RESOURCES = {
    kind: Resource(f"{kind.replace('-', '_')}_api_keys", api_keys, publishes=True) for kind in SCOPES_BY_KEY_TYPE
}
# A caller that manages organisation keys of users needs the same scopes as for the organisation's service keys.
KEY_RESOURCES["organisation-user"] = Resource("organisation_service_api_keys", api_keys, publishes=True)

# Column values of a key without limits, expiry and defaults.
UNLIMITED_COLUMNS: dict[str, Any] = {"usage_limits": None, "rate_limits": None, "expires_at": None, "defaults": {}}


async def store_digest(
    session: TenantSession, key_id: str, secret: str, sealed: str | None = None, digest: str | None = None
) -> None:
    """Stores the digest by which the gateway finds a key. `sealed` is the encrypted secret, if a client must still
    fetch it. `digest` is used instead of `secret` if only the client knows the secret.

    Without `sealed`, the response returns the secret. It is then bound to the users on whose authority the caller acts,
    and expires when one of them loses access.
    """
    sha256 = digest or sha256_hex(secret)
    row = {"id": new_id(), "api_key_id": key_id, "sha256": sha256, "sealed": sealed, "created_at": now()}
    await session.insert(key_digests, {**row, "expires_at": None, **({} if sealed else _holder_columns(session))})


async def reject_digest(session: TenantSession, digest: str) -> None:
    """Rejects a digest that a client sends instead of a generated secret, if a key already has it. Also rejects other
    callers than admins and keys of the organisation: they could choose weak secrets, or find out which are in use.
    """
    if not session.caller.is_organisation_admin or session.caller.workspace_id is not None:
        reason = "is only for admins and keys of the organisation, because the gateway does not know how strong the secret is"
        raise ForbiddenError(f"key_sha256 {reason}", [Problem("key_sha256", reason)])
    query = select(key_digests.c.id).where(key_digests.c.sha256 == digest)
    if await session.organisation().fetch_rows(query, key_digests):
        reason = "is the digest of a key that exists already"
        raise ConflictError(f"key_sha256 {reason}", [Problem("key_sha256", reason)])


def _holder_columns(session: TenantSession) -> dict[str, Any]:
    """Returns columns with the recipient of a secret: the caller, and the users on whose authority it acts."""
    caller = session.caller
    return {"holders": sorted(caller.authorities) or None, "issued_to": caller.actor_id}


def has_holder(column: ColumnElement[Any], user_id: str) -> ColumnElement[bool]:
    """Returns the condition that a JSON column with a list of user ids contains a user."""
    return cast(column, Text).contains(f'"{user_id}"', autoescape=True)


async def end_authority(
    session: TenantSession, user_id: str, *conditions: ColumnElement[bool], keeps_service_keys: bool = False
) -> None:
    """Expires the secrets that were issued on the authority of a user who lost access, if their keys match the
    conditions.

    With `keeps_service_keys`, service keys stay valid on the authority of the caller, who must have their scopes. Then
    raises ForbiddenError if the caller itself acts on the authority of that user.
    """
    caller_authorities = session.caller.authorities
    if keeps_service_keys and user_id in caller_authorities:
        reason = (
            f"is true, but this caller acts on the authority of the user {user_id!r}; send the request as another user"
        )
        raise ForbiddenError(f"keep_service_keys {reason}", [Problem("keep_service_keys", reason)])
    org_session = session.organisation()
    columns = (api_keys.c.type, api_keys.c.workspace_id, api_keys.c.scopes)
    query = select(key_digests.c.id, key_digests.c.api_key_id, key_digests.c.holders, *columns)
    query = query.join(api_keys, api_keys.c.id == key_digests.c.api_key_id)
    query = query.where(has_holder(key_digests.c.holders, user_id), *conditions)
    rows = await org_session.fetch_rows(query, api_keys, key_digests)
    for row in rows:
        if keeps_service_keys and row["type"].endswith("-service"):
            session.check_grantable_scopes(row["scopes"], row["workspace_id"])
            # If no holder is left, no user's rights restrict the key any more. Only a caller without a user can cause
            # that.
            holders = sorted({*row["holders"], *caller_authorities} - {user_id})
            await org_session.update(key_digests, row["id"], {"holders": holders or None})
        else:
            await org_session.update(key_digests, row["id"], {"expires_at": now()})
    if rows:
        await org_session.mark_changed(*{section_name(api_keys, row["api_key_id"]) for row in rows})


async def create_user_key(  # noqa: PLR0913 - one parameter for each property of a key
    session: TenantSession,
    workspace: Row,
    user_id: str,
    scopes: list[str],
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    waits: bool = False,
) -> tuple[str, str]:
    """Creates a key for a user in a workspace; returns its id and secret. `settings` has further column values.

    With `waits`, also stores the encrypted secret, which the first rotation of the key returns and deletes.
    """
    secret = session.generate_key()
    config, more = workspace["defaults"].get("user_api_key_config"), settings or {}
    values: dict[str, Any] = {
        "name": name,
        "type": "workspace-user",
        "status": "active",
        "creation_mode": "auto",
        "masked": mask_secret(secret),
        "scopes": scopes,
        **more,
        "defaults": {**({"config_id": config} if config else {}), **more.get("defaults", {})},
        "rotation_policy": build_policy(None, await enforced_rotation_days(session, "workspace-user", workspace["id"])),
        "created_by": user_id,
        "workspace_id": workspace["id"],
        "user_id": user_id,
    }
    values |= await apply_workspace_rules(session, values)
    if waits:
        await reject_escalation(session, {**UNLIMITED_COLUMNS, **values})
    row = await KEY_RESOURCES["workspace-user"].create(session, values)
    await store_digest(session, row["id"], secret, await session.seal(secret, row["id"]) if waits else None)
    return row["id"], secret


async def create_member_key(
    session: TenantSession, workspace: Row, user_id: str, role: str, *, waits: bool = False
) -> tuple[str, str] | None:
    """Creates a key with all scopes of the role for a new member. Returns `None` if the rules of the workspace do not
    create keys automatically, or allow no further key.
    """
    if not await auto_creates_keys(session, workspace) or not await can_add_key(session, workspace["id"], user_id):
        return None
    flags = roles.non_default_flags(workspace["settings"], await organisation_rules(session))
    scopes = sorted(roles.role_scopes(role, flags) & SCOPES_BY_KEY_TYPE["workspace-user"])
    return await create_user_key(session, workspace, user_id, scopes, "key of a member", waits=waits)


async def enforced_rotation_days(session: TenantSession, type_: str, workspace_id: str | None) -> int | None:
    """Returns the enforced rotation period of user keys in days: the workspace's, else the organisation's. `None` if
    there is none.
    """
    if not type_.endswith("-user"):
        return None
    return (await effective_rules(session, workspace_id)).get("user_api_key_rotation_period")


async def apply_workspace_rules(
    session: TenantSession, values: Mapping[str, Any], before: Row | None = None
) -> dict[str, Any]:
    """Returns the expiry and metadata that the rules of the workspace set for a user key. `before` is the stored row."""
    key = {**(before or {}), **values}
    if key["type"] != "workspace-user":
        return {}
    rules = await effective_rules(session, key["workspace_id"])
    changes: dict[str, Any] = {}
    end, created_at = key.get("expires_at"), before["created_at"] if before else now()
    longest = rules.get("user_api_key_max_ttl")
    own_end = session.caller.ends_at
    if before is None and end in {None, own_end}:
        ends = [created_at + seconds * 1000 for seconds in (rules.get("user_api_key_ttl"), longest) if seconds]
        changes["expires_at"] = min([*ends, own_end] if own_end else ends, default=None)
    # Accepts an unchanged expiry that a client sends back.
    elif (
        longest
        and "expires_at" in values
        and (before is None or end != before["expires_at"])
        and _expires_after(end, created_at + longest * 1000)
    ):
        latest = format_timestamp(created_at + longest * 1000)
        raise field_error(
            "expires_at", f"is later than {latest}: user keys are valid for {longest} s in this workspace"
        )
    if rules.get("user_key_metadata") and "defaults" in values:
        merged = _merge_metadata(rules, values["defaults"].get("metadata"))
        # The metadata of the key and that of the rule may each be within the limits, but not both together.
        check_default_metadata("defaults.metadata", merged)
        changes["defaults"] = {**values["defaults"], "metadata": merged}
    return changes


def _merge_metadata(rules: Mapping[str, Any], fields: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the metadata of a user's key: `fields`, merged with the metadata of the rule `user_key_metadata`."""
    of_rule: dict[str, str] = rules.get("user_key_metadata") or {}
    fields = fields or {}
    return {**of_rule, **fields} if rules.get("user_key_metadata_override", 1) else {**fields, **of_rule}


async def check_promised_key(
    session: TenantSession, workspace_id: str, path: str, end: int | None, metadata: Mapping[str, str] | None
) -> None:
    """Rejects the expiry or metadata of a key that an invitation promises, if the rules of its workspace forbid them.
    `path` is the JSON path of the key's details, and `end` the expiry in Unix milliseconds.
    """
    rules = await effective_rules(session, workspace_id)
    longest = rules.get("user_api_key_max_ttl")
    if longest and end is not None and end > (latest := now() + longest * 1000):
        reason = f"is later than {format_timestamp(latest)}: user keys are valid for {longest} s in the workspace {workspace_id!r}"
        raise field_error(f"{path}.expiry", reason)
    check_default_metadata(f"{path}.metadata", _merge_metadata(rules, metadata))


async def cap_expiry(session: TenantSession, workspace_id: str, end: int) -> int:
    """Returns the expiry of a promised key, reduced to what the workspace allows now. Its rules may be stricter than
    when the key was promised.
    """
    longest = (await effective_rules(session, workspace_id)).get("user_api_key_max_ttl")
    return min(end, now() + longest * 1000) if longest else end


def _expires_after(end: int | None, moment: int) -> bool:
    return end is None or end > moment


async def can_add_key(session: TenantSession, workspace_id: str, user_id: str) -> bool:
    """Returns true if a user may have one more key in a workspace."""
    maximum = (await effective_rules(session, workspace_id)).get("user_api_key_count", -1)
    good = or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now())
    conditions = [api_keys.c.workspace_id == workspace_id, api_keys.c.user_id == user_id, api_keys.c.status == "active"]
    return maximum == -1 or await session.count(api_keys, [*conditions, good]) < maximum


async def remove_matching(session: TenantSession, *conditions: ColumnElement[bool]) -> None:
    """Removes all keys that match the conditions."""
    for kind, resource in KEY_RESOURCES.items():
        await resource.delete_all(session, api_keys.c.type == kind, *conditions)


async def reject_escalation(
    session: TenantSession, fields: Mapping[str, Any], before: Row | None = None, *, resets_usage: bool = False
) -> None:
    """Rejects values with which the calling key would evade its own limits, expiry or bound config. `fields` are those
    of the calling key itself or of another key. `resets_usage` is true if the request resets the usage.
    """
    if session.caller.is_bound:
        raise ForbiddenError("a token with limits, or with a config that it may not leave, makes and changes no keys")
    holder = await session.organisation().find(api_keys, session.caller.id)
    if holder is None:
        # The caller is a user or a token, whose scopes come from roles. A token that belongs to no user must not create
        # keys that expire later than itself.
        ends = {"expires_at": session.caller.ends_at}
        limits.reject_exceeding_limits(
            ends, fields, "would be later than the expiry of the calling token, which belongs to no user"
        )
        return
    if before is None and (name := limits.limiting_field(holder)):
        reason = "apply to the calling key, and the usage of another key would not count: it can only rotate itself"
        raise ForbiddenError(f"{name} {reason}", [Problem(name, reason)])
    limits.reject_exceeding_limits(holder, fields, "would exceed what the calling key has itself")
    binding: dict[str, Any] = holder["defaults"]
    if "defaults" in fields and binding.get("config_id") and not binding.get("allow_config_override", True):
        other = {"allow_config_override": True, **fields["defaults"]}
        if other.get("config_id") != binding["config_id"] or other["allow_config_override"]:
            reason = "must have the config that the calling key is bound to, and no override"
            raise ForbiddenError(f"defaults {reason}", [Problem("defaults", reason)])
    for name in DEFAULT_FIELDS:
        guardrail_ids: list[str] = fields.get("defaults", binding).get(name) or []
        if not set(binding.get(name) or ()) <= set(guardrail_ids):
            field, reason = f"defaults.{name}", "must contain the guardrails of the calling key"
            raise ForbiddenError(f"{field} {reason}", [Problem(field, reason)])
    if resets_usage and holder["usage_limits"]:
        message = "a key with usage limits cannot reset its own usage or that of others"
        raise ForbiddenError(message, [Problem("reset_usage", "cannot be set by this key")])


async def rotate_key(session: TenantSession, row: Row, transition: int | None) -> tuple[str, int]:
    """Gives a key a new secret, or returns the stored secret that no client has fetched yet, such as that of a
    scheduled rotation. Also returns the expiry of the old secret in Unix milliseconds.
    """
    await session.check_precondition(api_keys, row)
    if transition is not None:
        cadence = await enforced_rotation_days(session, row["type"], row["workspace_id"])
        check_transition_length("key_transition_period_ms", transition, cadence, row["rotation_policy"])
    digests = await _load_digests(session, row["id"])
    # Starts with the newest digest, because an older secret that no client fetched is about to expire.
    for waiting in reversed(digests):
        if waiting["sealed"]:
            return await _return_waiting_secret(session, row, waiting, digests)
    secret, end = await _replace_secret(session, row, digests, transition, sealed=False)
    return secret, end


async def rotate_on_schedule(session: TenantSession, row: Row) -> None:
    """Replaces the secret of a key. The new one is stored encrypted until a caller fetches it with a rotation."""
    await _replace_secret(session, row, await _load_digests(session, row["id"]), None, sealed=True)


async def _load_digests(session: TenantSession, key_id: str) -> list[Row]:
    await session.delete(key_digests, key_digests.c.api_key_id == key_id, key_digests.c.expires_at <= now())
    query = select(key_digests).where(key_digests.c.api_key_id == key_id).order_by(key_digests.c.id)
    return await session.fetch_rows(query, key_digests)


async def _replace_secret(
    session: TenantSession, row: Row, digests: list[Row], transition: int | None, *, sealed: bool
) -> tuple[str, int]:
    if len(digests) > 1:
        raise ConflictError("this key is in transition: its old secret is still valid")
    policy: dict[str, Any] | None = row["rotation_policy"]
    end = now() + (transition or (policy["key_transition_period_ms"] if policy else SHORTEST_TRANSITION))
    for old in digests:
        await session.update(key_digests, old["id"], {"expires_at": end})
    secret = session.generate_key()
    await store_digest(session, row["id"], secret, await session.seal(secret, row["id"]) if sealed else None)
    change: dict[str, Any] = {"masked": mask_secret(secret), "last_rotated_at": now()}
    if policy:
        due = next_rotation(policy, datetime.fromtimestamp(now() / 1000, UTC))
        change["rotation_policy"] = {**policy, "next_rotation_at": format_timestamp(to_milliseconds(due))}
    await _record_rotation(session, row, change)
    return secret, end


async def _return_waiting_secret(session: TenantSession, row: Row, waiting: Row, digests: list[Row]) -> tuple[str, int]:
    secret = await session.open(waiting["sealed"], row["id"])
    await session.update(key_digests, waiting["id"], {"sealed": None, **_holder_columns(session)})
    await _record_rotation(session, row, {"last_rotated_at": row["last_rotated_at"]})
    ends = [old["expires_at"] for old in digests if old["expires_at"] is not None]
    return secret, min(ends, default=now())


async def _record_rotation(session: TenantSession, row: Row, change: dict[str, Any]) -> None:
    await session.update(api_keys, row["id"], change)
    await session.record_change(f"{KEY_RESOURCES[row['type']].name}.rotate", before=row, after={**row, **change})
    await session.mark_changed(section_name(api_keys, row["id"]))
