"""Lookups of keys, configs, providers and models in the last published snapshot. The model catalogue uses them while
the database is unavailable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.authorization import Caller
from penstock.schemas import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.snapshot.build import StoreData
    from penstock.store.tenant import Row

# Values of `lacks` with which a key may still call models.
MAY_CALL = (None, "render")
# Scopes of a caller that is known only from a snapshot. The snapshot contains no other scopes, because the engine only
# needs to know whether a key may call models.
SNAPSHOT_CALLER_SCOPES = frozenset({"completions.write"})


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot row that may expire, with the time in Unix seconds."""

    expires_at: int | None = None

    @property
    def is_expired(self) -> bool:
        """True if the row has expired."""
        return self.expires_at is not None and self.expires_at * 1000 <= now()


class SnapshotKey(Expiry, frozen=True, kw_only=True):
    """An API key as the engine receives it. `lacks` is the right that the key does not have, or `None` if it
    has all.
    """

    id: str
    sha256: str
    workspace: str | None = None
    defaults: dict[str, Any] = {}
    lacks: str | None = None


class SnapshotConfig(msgspec.Struct, frozen=True):
    """A saved config in a snapshot."""

    id: str
    slug: str
    workspace: str
    config: msgspec.Raw


class SnapshotChunk(msgspec.Struct, frozen=True):
    """One chunk of a snapshot's large tables."""

    keys: list[SnapshotKey] = []
    configs: list[SnapshotConfig] = []


class SnapshotProvider(Expiry, frozen=True, kw_only=True):
    """A provider of a workspace. `models` is the id of its `IntegrationModels` row."""

    slug: str
    provider: str
    workspace: str
    models: str | None = None


class SnapshotModel(msgspec.Struct, frozen=True):
    """The entry of one model. An entry without a `custom_host` field, not even null, is only a deployment and not in
    the catalogue.
    """

    slug: str
    enabled: bool
    custom_host: str | msgspec.UnsetType | None = msgspec.UNSET


class IntegrationModels(msgspec.Struct, frozen=True):
    """The model entries of an integration. `allow_all` is true if models without an entry may be used."""

    id: str
    allow_all: bool = True
    models: list[SnapshotModel] = []


class SnapshotWorkspace(msgspec.Struct, frozen=True):
    """A workspace and its organisation."""

    id: str
    organisation_id: str


def find_key(stored: StoreData, name: str) -> SnapshotKey | None:
    """Returns the key with this SHA-256 digest or id. Returns `None` if there is none, or if it may not call models."""
    keys = (key for part in _read_chunks_containing(stored, name) for key in part.keys if name in {key.sha256, key.id})
    return next((key for key in keys if key.workspace and key.lacks in MAY_CALL and not key.is_expired), None)


def find_caller(stored: StoreData, digest: str) -> Caller | None:
    """Returns the caller for the key with this digest; `None` if the snapshot has no such key that may call models."""
    key = find_key(stored, digest)
    workspaces = _decode_rows(stored.workspaces, SnapshotWorkspace) if key else []
    of = next((workspace.organisation_id for workspace in workspaces if key and workspace.id == key.workspace), None)
    if key is None or of is None:
        return None
    return Caller(
        id=key.id,
        type="workspace-service",
        organisation_id=of,
        workspace_id=key.workspace,
        scopes=SNAPSHOT_CALLER_SCOPES,
        is_last_known=True,
    )


def find_default_config(stored: StoreData, caller: Caller) -> tuple[str | None, bool]:
    """Returns the default config id of a key or token, and true if requests may use another config."""
    if caller.by != "key":
        return caller.config_id, caller.may_leave_config
    key = find_key(stored, caller.id)
    content = key.defaults if key else {}
    return content.get("config_id"), content.get("allow_config_override", True) is not False


def find_config(stored: StoreData, workspace: str, name: str) -> bytes | None:
    """Returns a saved config of a workspace by id or slug, as the JSON that was saved; `None` if there is none."""
    chunks_containing = (
        config
        for part in _read_chunks_containing(stored, name)
        for config in part.configs
        if config.workspace == workspace
    )
    return next((bytes(item.config) for item in chunks_containing if name in {item.id, item.slug}), None)


def list_providers(stored: StoreData, workspace: str) -> tuple[list[Row], dict[str, list[Row]]]:
    """Returns the usable providers of a workspace, and the model entries by integration id. Both have the shape of
    database rows.
    """
    content = {row.id: row for row in _decode_rows(stored.models, IntegrationModels)}
    rows: list[Row] = []
    models: dict[str, list[Row]] = {}
    for item in _decode_rows(stored.providers, SnapshotProvider):
        if item.workspace != workspace or item.is_expired:
            continue
        integration_models = content.get(item.models or "", IntegrationModels(""))
        # `created_at` is 0, because snapshots do not contain the creation time.
        row = {"slug": item.slug, "ai_provider_id": item.provider, "integration_id": item.models, "created_at": 0}
        rows.append({**row, "allow_all_models": integration_models.allow_all})
        own = [model for model in integration_models.models if model.custom_host is not msgspec.UNSET]
        models[integration_models.id] = [{"slug": model.slug, "enabled": model.enabled} for model in own]
    return rows, models


def _read_chunks_containing(stored: StoreData, text: str) -> Iterator[SnapshotChunk]:
    """Decodes only the chunks whose bytes contain a text, because the tables may have very many rows."""
    requested = msgspec.json.encode(text)
    for chunk in stored.chunks.values():
        if requested in chunk.data:
            yield msgspec.json.decode(chunk.data, type=SnapshotChunk)


def _decode_rows(insides: bytes, kind: Any) -> list[Any]:  # noqa: ANN401 - a type of rows
    return msgspec.json.decode(b"[%s]" % insides, type=list[kind])
