"""What the last snapshot says of a key and of the models that it may use: the catalogue is told while the database is away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.authorization import Caller
from penstock.schemas import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.snapshot.build import StoreData
    from penstock.store.tenant import Row

# All that a caller may who is known by a snapshot alone: what it says of keys is for calls of models.
SNAPSHOT_CALLER_SCOPES = frozenset({"completions.write"})


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may end by itself, in seconds since 1970."""

    expires_at: int | None = None

    @property
    def is_expired(self) -> bool:
        """Whether it has ended."""
        return self.expires_at is not None and self.expires_at * 1000 <= now()


class SnapshotKey(Expiry, frozen=True, kw_only=True):
    """A key, as the engine is told of it; `lacks` says why it may call no models."""

    id: str
    sha256: str
    workspace: str | None = None
    defaults: dict[str, Any] = {}
    lacks: str | None = None


class SnapshotConfig(msgspec.Struct, frozen=True):
    """A saved config."""

    id: str
    slug: str
    workspace: str
    config: msgspec.Raw


class SnapshotChunk(msgspec.Struct, frozen=True):
    """A part of the large tables."""

    keys: list[SnapshotKey] = []
    configs: list[SnapshotConfig] = []


class SnapshotProvider(Expiry, frozen=True, kw_only=True):
    """A provider of a workspace; `models` names what is said of its models."""

    slug: str
    provider: str
    workspace: str
    models: str | None = None


class SnapshotModel(msgspec.Struct, frozen=True):
    """What is said of one model; what is a deployment alone has no `custom_host`, not even none."""

    slug: str
    enabled: bool
    custom_host: str | msgspec.UnsetType | None = msgspec.UNSET


class IntegrationModels(msgspec.Struct, frozen=True):
    """What is said of the models of an integration."""

    id: str
    allow_all: bool = True
    models: list[SnapshotModel] = []


class SnapshotWorkspace(msgspec.Struct, frozen=True):
    """A workspace, and whose it is."""

    id: str
    organisation_id: str


def find_key(stored: StoreData, name: str) -> SnapshotKey | None:
    """Find a key that may call models by the digest of its text, or by its id."""
    keys = (key for part in _read_chunks_containing(stored, name) for key in part.keys if name in {key.sha256, key.id})
    return next((key for key in keys if key.workspace and not key.lacks and not key.is_expired), None)


def find_caller(stored: StoreData, digest: str) -> Caller | None:
    """Say who calls with the key of this digest; nobody where the snapshot does not say that they may."""
    key = find_key(stored, digest)
    places = _decode_rows(stored.workspaces, SnapshotWorkspace) if key else []
    of = next((place.organisation_id for place in places if key and place.id == key.workspace), None)
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
    """Give the config of a key or token, and whether requests may bring another."""
    if caller.by != "key":
        return caller.config_id, caller.may_leave_config
    key = find_key(stored, caller.id)
    said = key.defaults if key else {}
    return said.get("config_id"), said.get("allow_config_override", True) is not False


def find_config(stored: StoreData, workspace: str, name: str) -> bytes | None:
    """Give a saved config of a workspace by id or slug, as it was saved."""
    found = (
        one for part in _read_chunks_containing(stored, name) for one in part.configs if one.workspace == workspace
    )
    return next((bytes(one.config) for one in found if name in {one.id, one.slug}), None)


def list_providers(stored: StoreData, workspace: str) -> tuple[list[Row], dict[str, list[Row]]]:
    """Give the providers of a workspace that may be used, and what is said of the models behind them, as their rows have it."""
    said = {one.id: one for one in _decode_rows(stored.models, IntegrationModels)}
    rows: list[Row] = []
    models: dict[str, list[Row]] = {}
    for one in _decode_rows(stored.providers, SnapshotProvider):
        if one.workspace != workspace or one.is_over:
            continue
        behind = said.get(one.models or "", IntegrationModels(""))
        # When they were made is not among what the engine must know.
        row = {"slug": one.slug, "ai_provider_id": one.provider, "integration_id": one.models, "created_at": 0}
        rows.append({**row, "allow_all_models": behind.allow_all})
        own = [model for model in behind.models if model.custom_host is not msgspec.UNSET]
        models[behind.id] = [{"slug": model.slug, "enabled": model.enabled} for model in own]
    return rows, models


def _read_chunks_containing(stored: StoreData, text: str) -> Iterator[SnapshotChunk]:
    """Read the parts that hold a text somewhere; only these are read, of what may be very many rows."""
    wanted = msgspec.json.encode(text)
    for piece in stored.pieces.values():
        if wanted in piece.data:
            yield msgspec.json.decode(piece.data, type=SnapshotChunk)


def _decode_rows(insides: bytes, kind: Any) -> list[Any]:  # noqa: ANN401 - a type of rows
    return msgspec.json.decode(b"[%s]" % insides, type=list[kind])
