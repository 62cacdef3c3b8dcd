"""Database rows of integrations: a provider with its credential, its options, and the workspaces that may use it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import and_, exists, or_, select

from penstock import engine, ids
from penstock.authorization import require_scopes
from penstock.errors import ConflictError, NotFoundError
from penstock.ids import PROVIDER_ALIASES, SLUG_PATTERN, mask_secret, new_id
from penstock.integrations import provider_options as forms
from penstock.kit.resource import Resource
from penstock.schemas import field_error, now
from penstock.secrets import mappings
from penstock.secrets.masks import MOVED_MESSAGE
from penstock.similar_names import describe_unknown
from penstock.store.tables import integration_models, integration_workspaces, integrations, providers, workspaces
from penstock.store.tenant import select_by_id_or_slug

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement

    from penstock.authorization import RequireScopes
    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

INTEGRATIONS = Resource("integrations", integrations, publishes=True)
MODELS = Resource("integration_models", integration_models, publishes=True)
WORKSPACES = Resource("integration_workspaces", integration_workspaces, publishes=True)
PROVIDERS = Resource("providers", providers, publishes=True)
MAX_SLUG_ROOT_LENGTH = 200
HEADERS_FOLLOW_HINT = "would be sent there too; hint: remove them first, or give the model a custom_host of its own"
MAPPED_HOST_MESSAGE = (
    "decides where a stored credential of this integration is sent, and a change of that secret would redirect it; "
    "hint: set the field itself, or map the credential too"
)

ProviderSlug = Annotated[
    Annotated[str, Meta(pattern=SLUG_PATTERN)] | None,
    Meta(description="slug of the provider that is created with it; default: the integration's"),
]

DEFAULT_VALUES: dict[str, Any] = {
    "description": None,
    "status": "active",
    "brought_along": False,
    "sealed_key": None,
    "masked_key": None,
    "sealed_configurations": None,
    "secret_mappings": [],
    "tags": {},
    "allow_all_models": True,
    "pricing_adjustments": None,
    "global_access": {"enabled": False},
    "default_provider_slug": None,
}


class IntegrationWarning(msgspec.Struct, frozen=True):
    """A part of an integration that will fail when a request uses it."""

    path: Annotated[str, Meta(description="JSON path, such as `configurations.custom_host`")]
    message: Annotated[str, Meta(description="why it will fail")]


WarningsField = Annotated[
    list[IntegrationWarning] | UnsetType,
    Meta(description="parts that will fail, such as an empty key or a private host that is not trusted"),
]


class SentCredentials(NamedTuple):
    """Credentials of an integration in a request: its key and its secret options."""

    key: str | UnsetType
    options: Mapping[str, Any]


def resolve_provider(path: str, name: str) -> str:
    """Returns the engine's name of a provider; rejects a provider that the engine does not know."""
    known_slugs = sorted(provider["slug"] for provider in engine.catalogue())
    slug = PROVIDER_ALIASES.get(name, name)
    if slug not in known_slugs:
        raise field_error(path, f"{name!r} {describe_unknown(name, known_slugs)}")
    return slug


async def create_integration(session: TenantSession, row_id: str, values: Mapping[str, Any]) -> Row:
    """Creates an integration."""
    return await INTEGRATIONS.create(
        session, {**DEFAULT_VALUES, "owner_id": session.caller.actor_id, "id": row_id, **values}
    )


async def mark_changed(session: TenantSession, row: Row) -> None:
    """Updates the timestamp of an integration after a change to its models or workspaces, so that If-Match detects the
    change.
    """
    org_session = session.organisation()
    await org_session.check_precondition(integrations, row)
    # The new time must be later than the old one, or two changes within one millisecond would look like one.
    await org_session.update(integrations, row["id"], {"last_updated_at": max(now(), row["last_updated_at"] + 1)})


async def remove_integration(session: TenantSession, row: Row) -> None:
    """Removes an integration and the providers that use it."""
    org_session = session.organisation()
    await org_session.check_precondition(integrations, row)
    await PROVIDERS.delete_all(org_session, providers.c.integration_id == row["id"])
    await _remove_with_details(org_session, row)


def model_session(session: TenantSession, row: Row) -> TenantSession:
    """Returns a session for changes to an integration's models. Audit entries go to the workspace that owns the
    integration.
    """
    org_session = session.organisation()
    org_session.noted_in = row["workspace_id"]
    return org_session


async def _remove_with_details(org_session: TenantSession, row: Row) -> None:
    """Removes an integration with the rows of its models and workspaces."""
    await MODELS.delete_all(model_session(org_session, row), integration_models.c.integration_id == row["id"])
    await WORKSPACES.delete_all(org_session, integration_workspaces.c.integration_id == row["id"])
    await INTEGRATIONS.delete(org_session, row)


async def remove_owned(session: TenantSession) -> None:
    """Removes the integrations that a workspace owns. The calling code has already removed its providers."""
    for row in await session.fetch_rows(select(integrations), integrations):
        await _remove_with_details(session.organisation(), row)


async def remove_if_unused(session: TenantSession, integration_id: str) -> None:
    """Removes an integration that was created with a virtual key, if no provider uses it any more."""
    row = await session.find(integrations, integration_id)
    if row and row["brought_along"] and not await session.count(providers, [providers.c.integration_id == row["id"]]):
        await _remove_with_details(session.organisation(), row)


def find_warnings(row: Mapping[str, Any], trusted_hosts: Sequence[str]) -> list[IntegrationWarning] | UnsetType:
    """Returns a warning for a missing credential and for a host that the gateway will refuse; UNSET if there is none.
    Names of hosts are not resolved.
    """
    warnings: list[IntegrationWarning] = []
    host: str | None = row["configurations"].get("custom_host")
    has_credential = row["sealed_key"] or row["sealed_configurations"] or row["secret_mappings"]
    if not has_credential and not host and forms.needs_key(row["ai_provider_id"]):
        message = "is empty: requests to this provider will be sent without a credential"
        warnings.append(IntegrationWarning("key", message))
    if host:
        parts = urlsplit(host)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        if reason := engine.refuse_destination(list(trusted_hosts), name, port, []):
            warnings.append(IntegrationWarning("configurations.custom_host", f"will be refused: {reason}"))
    return warnings or UNSET


async def seal_key(session: TenantSession, owner: str, key: str, row: Row | None = None) -> dict[str, Any]:
    """Encrypts a credential and returns the columns to store. An empty credential clears the columns. A credential that
    equals the stored mask leaves them unchanged.
    """
    if row is not None and key == row["masked_key"]:
        return {}
    if not key:
        return {"sealed_key": None, "masked_key": None}
    if not key.isprintable():
        raise field_error("key", "must not hold control characters")
    return {
        "sealed_key": await session.seal(key, owner),
        "masked_key": mask_secret(key),
    }


async def reject_moved_credentials(
    session: TenantSession, row: Row, change: Mapping[str, Any], configurations: str, sent: Mapping[str, Any] | None
) -> None:
    """Rejects a change that would send stored credentials to another destination, unless the request contains these
    credentials. This also applies to the user who supplied them. `configurations` is the name of the options field, and
    `sent` its value in the request.
    """
    _reject_mapped_hosts({**row, **change})
    is_moved = forms.has_new_destination(_options_with_mappings(row), _options_with_mappings({**row, **change}))
    if "secret_mappings" in change or is_moved:
        await reject_exposed_secrets(session, {**row, **change}, [] if is_moved else row["secret_mappings"], row)
    if not is_moved:
        return
    if row["secret_mappings"] and "secret_mappings" not in change:
        mappings.require_reference_scope(session, "secret_mappings", MOVED_MESSAGE)
    if row["sealed_key"] and "sealed_key" not in change:
        raise field_error("key", MOVED_MESSAGE)
    _require_sent_secrets(configurations, await open_secrets(session, {**row, **change}), sent or {})
    for model in await list_models(session, row):
        if model["sealed_configurations"] and not _custom_host(model):
            raise field_error(
                configurations, f"names another place, and custom_headers of {model['slug']!r} {HEADERS_FOLLOW_HINT}"
            )


def _require_sent_secrets(path: str, secrets: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Rejects a request that does not contain each of these secret options in clear text."""
    for name, value in secrets.items():
        if sent.get(name) != value:
            raise field_error(f"{path}.{name}", MOVED_MESSAGE)


def _reject_mapped_hosts(values: Mapping[str, Any]) -> None:
    """Rejects mappings that would let a secret manager decide where stored credentials are sent."""
    if not (values["sealed_key"] or values["sealed_configurations"]):
        return
    for index, mapping in enumerate(values["secret_mappings"]):
        option = mapping["target_field"].removeprefix(mappings.OPTION_PREFIX)
        if mapping["target_field"] != "key" and forms.untrusted_host_fields({option: mapping}):
            raise field_error(f"secret_mappings[{index}].target_field", MAPPED_HOST_MESSAGE)


async def reject_exposed_secrets(
    session: TenantSession,
    values: Mapping[str, Any],
    allowed_mappings: Collection[Mapping[str, Any]] = (),
    row: Row | None = None,
) -> None:
    """Rejects mappings that would send secrets of a secret manager to a host outside the provider. Mappings in
    `allowed_mappings` are accepted, because their secrets already go there.
    """
    _reject_mapped_hosts(values)
    host_fields = forms.untrusted_host_fields(_options_with_mappings(values))
    host_fields += [
        f"models[{model['slug']!r}]"
        for model in (await list_models(session, row) if row else [])
        if _custom_host(model)
    ]
    for index, mapping in enumerate(values["secret_mappings"]):
        if host_fields and mapping not in allowed_mappings:
            reason = f"would send a secret of a secret manager to the host in {host_fields[0]}, which may be anybody's"
            mappings.require_reference_scope(session, f"secret_mappings[{index}]", reason)


async def reject_foreign_host(
    session: TenantSession,
    row: Row,
    path: str,
    host: str | None,
    bound: Iterable[str | None],
    sent: SentCredentials,
) -> None:
    """Rejects a model's custom host if it is a new destination for credentials of its integration, unless the request
    contains them. `bound` are hosts that already get these credentials.
    """
    if host is None:
        return
    if _address(host) in {_address(allowed_host) for allowed_host in (_custom_host(row), *bound) if allowed_host}:
        return
    if row["secret_mappings"]:
        mappings.require_reference_scope(session, path, "is a new destination for secrets of a secret manager")
    if row["sealed_key"] and (sent.key is UNSET or sent.key == row["masked_key"]):
        raise field_error("key", MOVED_MESSAGE)
    if row["sealed_configurations"]:
        secrets, hidden = row["configurations"], await open_secrets(session, row)
        for name, secret in hidden.items():
            if not forms.is_complete_secret(sent.options.get(name), secrets.get(name), secret):
                raise field_error(f"configurations.{name}", MOVED_MESSAGE)


def _custom_host(row: Row) -> str | None:
    return row["configurations"].get("custom_host")


def _address(url: str) -> tuple[str, str, str]:
    # The path may select the tenant of a shared host, so it belongs to the destination.
    try:
        parts = urlsplit(url)
    except ValueError:
        # A malformed URL, such as `http://[`, counts as a separate destination. No request can be sent to it.
        return "", url, ""
    return parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/")


async def list_models(session: TenantSession, row: Row) -> list[Row]:
    """Lists the model rows of an integration."""
    query = select(integration_models).where(integration_models.c.integration_id == row["id"])
    return await session.organisation().fetch_rows(query.order_by(integration_models.c.slug), integration_models)


def _options_with_mappings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of an integration, with those that secret mappings supply."""
    mapped = {mapping["target_field"].removeprefix("configurations."): mapping for mapping in row["secret_mappings"]}
    return {**row["configurations"], **mapped}


async def seal_options(
    session: TenantSession, owner: str, path: str, fields: Mapping[str, Any], row: Row | None = None
) -> dict[str, Any]:
    """Encrypts the secret options of an integration or a model and returns the columns to store."""
    before: dict[str, Any] = await open_secrets(session, row) if row else {}
    secrets, hidden = forms.split_secrets(path, fields, row["configurations"] if row else {}, before)
    sealed = await session.seal(msgspec.json.encode(hidden).decode(), owner) if hidden else None
    return {"configurations": secrets, "sealed_configurations": sealed}


async def open_secrets(session: TenantSession, row: Row) -> dict[str, Any]:
    """Decrypts the secret options of an integration or a model."""
    if not row["sealed_configurations"]:
        return {}
    return msgspec.json.decode(await session.open(row["sealed_configurations"], row["id"]))


async def find_integration(session: TenantSession, key: str) -> Row | None:
    """Returns the integration with this id or slug if the session's workspaces own or may use it, or else `None`.
    Ignores integrations that belong to a virtual key.
    """
    query = select_by_id_or_slug(integrations, key).where(
        *visible_conditions(session.workspace_ids), ~integrations.c.brought_along
    )
    return await session.organisation().fetch_first(query, integrations)


async def get_integration(session: TenantSession, key: str, verb: str) -> Row:
    """Returns an integration; raises NotFoundError if it is missing, and ForbiddenError if the caller lacks the scope
    of the verb.
    """
    row = await find_integration(session, key)
    if row is None:
        raise NotFoundError(f"there is nothing under {key!r} here")
    session.set_requested_row(integrations, row)
    is_allowed = [scope_for_verb(row["workspace_id"], verb)]
    if verb == "read":
        # A caller that may read the integrations of a workspace may also read the organisation's integrations that the
        # workspace can use.
        is_allowed.append(f"workspace_integrations.{verb}")
    session.require_any_scope(*is_allowed)
    return row


def require_either_scope(verb: str) -> RequireScopes:
    """Returns a guard that accepts a caller with the scope for workspaces or for the organisation. The route later
    checks which of them the row requires.
    """
    return require_scopes(scope_for_verb("", verb), scope_for_verb("some", verb))


def scope_for_verb(workspace_id: str | None, verb: str) -> str:
    """Returns the scope that a verb needs, for an integration of the organisation or of one workspace."""
    return f"{'workspace' if workspace_id else 'organisation'}_integrations.{verb}"


def visible_conditions(workspace_ids: frozenset[str] | None) -> list[ColumnElement[bool]]:
    """Returns SQL conditions for the integrations that these workspaces can see. `None` stands for the whole
    organisation, which sees all, so there are no conditions.
    """
    if workspace_ids is None:
        return []
    return [
        or_(
            integrations.c.workspace_id.in_(sorted(workspace_ids)),
            *(usable_condition(workspace_id) for workspace_id in sorted(workspace_ids)),
        )
    ]


def usable_condition(workspace_id: str | ColumnElement[str]) -> ColumnElement[bool]:
    """Returns the SQL condition for integrations that a workspace may use: its own, and those enabled for it. Without a
    setting for this workspace, the setting for all workspaces applies.
    """
    access_query = (
        select(integration_workspaces.c.enabled)
        .where(
            integration_workspaces.c.integration_id == integrations.c.id,
            integration_workspaces.c.workspace_id == workspace_id,
        )
        .correlate(integrations, providers, workspaces)
    )
    has_default_access = and_(integrations.c.global_access["enabled"].as_boolean(), ~exists(access_query))
    has_access = exists(access_query.where(integration_workspaces.c.enabled))
    shared = and_(integrations.c.workspace_id.is_(None), or_(has_access, has_default_access))
    return or_(integrations.c.workspace_id == workspace_id, shared)


async def find_free_slug(session: TenantSession, requested: str, workspace_id: str | None = None) -> str:
    """Returns the requested slug, with a random suffix if a provider of the workspace already has it. Without
    `workspace_id`, looks in all workspaces: a key of the organisation finds a provider by slug only if the slug is
    unique.
    """
    free = requested
    while await _is_slug_used(session, free, workspace_id):
        free = f"{requested[:MAX_SLUG_ROOT_LENGTH]}-{secrets.token_hex(3)}"
    return free


def slug_from_name(name: str) -> str:
    """Turns the name of a provider into a slug."""
    return ids.slug_root(name, MAX_SLUG_ROOT_LENGTH, "key")


async def create_missing_providers(
    session: TenantSession, row: Row, workspace_ids: Sequence[str], requested: str | None
) -> None:
    """Creates a provider for the integration in each workspace that has none. Its slug is `requested`, or else derived
    from the integration.
    """
    org_session = session.organisation()
    query = select(providers.c.workspace_id).where(providers.c.integration_id == row["id"])
    has = {row["workspace_id"] for row in await org_session.fetch_rows(query, providers)}
    for workspace_id in (workspace_id for workspace_id in workspace_ids if workspace_id not in has):
        values: dict[str, Any] = {
            "workspace_id": workspace_id,
            "integration_id": row["id"],
            "slug": await _choose_slug(session, row, workspace_id, requested),
            "name": row["name"],
            "note": None,
            "status": "active",
            "tags": {},
            **dict.fromkeys(("expires_at", "usage_limits", "rate_limits", "last_reset_at")),
        }
        await PROVIDERS.create(org_session, values)


async def _choose_slug(session: TenantSession, row: Row, workspace_id: str, requested: str | None) -> str:
    if requested is None:
        return await find_free_slug(session, row["default_provider_slug"] or row["slug"], workspace_id)
    if await _is_slug_used(session, requested, workspace_id):
        message = f"the workspace {workspace_id} has a provider {requested!r} already; hint: choose another default_provider_slug"
        raise ConflictError(message)
    return requested


async def _is_slug_used(session: TenantSession, slug: str, workspace_id: str | None) -> bool:
    inside = [providers.c.workspace_id == workspace_id] if workspace_id else []
    conditions = [*inside, providers.c.slug == slug]
    return await session.organisation().count(providers, conditions) > 0


async def set_workspace_access(session: TenantSession, row: Row, workspace_id: str, values: Mapping[str, Any]) -> None:
    """Enables or disables an integration for a workspace, and sets its limits there."""
    org_session = session.organisation()
    conditions = [
        integration_workspaces.c.integration_id == row["id"],
        integration_workspaces.c.workspace_id == workspace_id,
    ]
    before = await org_session.fetch_first(select(integration_workspaces).where(*conditions), integration_workspaces)
    if before:
        await WORKSPACES.update(org_session, before, values)
        return
    new_row = {"id": new_id(), "integration_id": row["id"], "workspace_id": workspace_id}
    unset_limits = dict.fromkeys(("usage_limits", "rate_limits", "last_reset_at"))
    await WORKSPACES.create(org_session, {**new_row, **unset_limits, **values})


async def last_reset_times(session: TenantSession, rows: Iterable[Row]) -> dict[str, int]:
    """Returns when the usage of each integration was last reset in one of the accessible workspaces, by integration id."""
    shares = integration_workspaces.c
    conditions = [shares.integration_id.in_([row["id"] for row in rows]), shares.last_reset_at.is_not(None)]
    if session.workspace_ids is not None:
        conditions.append(shares.workspace_id.in_(sorted(session.workspace_ids)))
    query = select(shares.integration_id, shares.last_reset_at).where(*conditions).order_by(shares.last_reset_at)
    shares = await session.organisation().fetch_rows(query, integration_workspaces)
    return {share["integration_id"]: share["last_reset_at"] for share in shares}


async def create_default_providers(session: TenantSession, workspace_id: str) -> None:
    """Creates the default providers of shared integrations in a new workspace."""
    shared = [integrations.c.workspace_id.is_(None), integrations.c.global_access["enabled"].as_boolean()]
    query = select(integrations).where(*shared, integrations.c.status == "active")
    for row in await session.organisation().fetch_rows(query, integrations):
        if row["global_access"].get("create_default_provider"):
            await create_missing_providers(session, row, [workspace_id], None)


async def usable_workspace_ids(session: TenantSession, row: Row) -> list[str]:
    """Lists the ids of the active workspaces that may use an integration."""
    query = select(workspaces.c.id).select_from(workspaces).join(integrations, usable_condition(workspaces.c.id))
    query = query.where(integrations.c.id == row["id"], workspaces.c.status == "active")
    return [row["id"] for row in await session.organisation().fetch_rows(query, workspaces, integrations)]
