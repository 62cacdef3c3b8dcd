"""The `[store]` settings section: the database of the management API, and the folder of everything that is stored."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.ids import KEY_PREFIX_PATTERN
from penstock.settings.secret import Secret


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """Database of the management API: organisations, keys, providers and configs."""

    url: Annotated[
        Secret | None,
        Meta(
            description="database: `postgresql://…` or `sqlite:///file`; "
            "default: `penstock.db` in `store.data_dir`, or next to the settings file if `penstock init` has created it"
        ),
    ] = None
    enabled: Annotated[
        bool,
        Meta(
            description="use a store; without one, keys, providers and configs come from the settings file alone, as "
            "with `--no-store`"
        ),
    ] = True
    data_dir: Annotated[
        str,
        Meta(
            description="folder of the embedded store, its master key, uploaded files, records and the log store; "
            "`penstock serve` creates what is missing; default: `penstock-data` if there is no settings file, or next to it if it exists; with `store.url`, if it has the master key"
        ),
    ] = ""
    connections: Annotated[int, Meta(ge=1, le=10, description="maximum connections to the database")] = 5
    acquire_ms: Annotated[int, Meta(ge=10, description="time limit for opening a connection to the database")] = 1000
    statement_ms: Annotated[int, Meta(ge=10, description="time limit for one SQL statement")] = 5000
    publish_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="maximum time that a change request waits until the workers of its node have applied it; 0: none",
        ),
    ] = 1000
    master_key: Annotated[
        Secret | None,
        Meta(
            description="key that encrypts stored credentials: 32 bytes as base64; several separated by commas: "
            "the first encrypts, the others still decrypt"
        ),
    ] = None
    master_key_file: Annotated[
        str, Meta(description="file with the master key; default: `penstock.key` next to the settings file")
    ] = ""
    master_key_reference: Annotated[
        Secret | None,
        Meta(
            description="master key in AWS Secrets Manager, Azure Key Vault or HashiCorp Vault: JSON with `manager_type`, `auth_config`, "
            "`secret_path` and `secret_key`, as in `POST /v1/secret-references`; it is fetched at startup"
        ),
    ] = None
    migrate: Annotated[
        bool,
        Meta(description="migrate the tables of a store that is not embedded at startup, as `--migrate` does"),
    ] = False
    admin_key: Annotated[
        Secret | None,
        Meta(
            description="first admin key of a new store; default: one is generated and printed once",
            extra={"env": "PENSTOCK_ADMIN_KEY"},
        ),
    ] = None
    key_prefix: Annotated[
        str,
        Meta(pattern=KEY_PREFIX_PATTERN, description="prefix of new API keys", extra={"env": "API_KEY_PREFIX"}),
    ] = ""
