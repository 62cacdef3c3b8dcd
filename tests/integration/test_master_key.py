"""Master keys from AWS Secrets Manager or HashiCorp Vault, and database migration at startup."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import migrate, newest_revision
from penstock.store.revision import current_revision
from tests.fork_server import run_penstock
from tests.gateway import Gateway
from tests.integration import vaults as fakes
from tests.integration.conftest import run_init
from tests.integration.management_client import ADMIN_KEY, Client
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.integration.serving import control_pid, run_gateway
from tests.integration.vaults import MockSecretStores
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Mock
    from tests.postgres import Postgres

MASTER_KEY = base64.b64encode(b"k" * 32).decode()
CREDENTIAL = "sk-sealed-0123456789"


@pytest.fixture
def vaults(tmp_path: Path) -> Iterator[MockSecretStores]:
    folder = tmp_path / "vaults"
    folder.mkdir()
    fake = MockSecretStores(folder)
    fake.kept |= {"/prod/key": MASTER_KEY, "secret/app": json.dumps({"master": f"{MASTER_KEY}\n", "other": "x"})}
    yield fake
    fake.stop()


def secret_references(vaults: MockSecretStores) -> dict[str, dict[str, Any]]:
    aws = {"aws_auth_type": "accessKey", "aws_access_key_id": fakes.AWS_KEY, "aws_region": "eu-west-1"}
    vault = {"vault_auth_type": "token", "vault_token": fakes.VAULT_TOKEN, "vault_addr": vaults.url}
    return {
        "aws_sm": {
            "auth_config": {**aws, "aws_secret_access_key": fakes.AWS_SECRET},
            "secret_path": "/prod/key",
        },
        "hashicorp_vault": {"auth_config": vault, "secret_path": "secret/data/app", "secret_key": "master"},
    }


def store_env(vaults: MockSecretStores, folder: Path, location: str, **more: object) -> Mapping[str, str]:
    reference = {"manager_type": location, **secret_references(vaults)[location], **more}
    return {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": f"sqlite:///{folder}/penstock.db",
        "PENSTOCK_STORE_MASTER_KEY_REFERENCE": json.dumps(reference),
        "PENSTOCK_SECRETS_AWS_ENDPOINT_URL": vaults.url,
        "TLS_CA": str(vaults.ca),
    }


def sent_credential(gateway: Gateway, provider: Mock, key: str) -> str | None:
    provider.clear_ledger()
    send_raw_request(
        gateway.base_url,
        CHAT_PATH,
        chat_body(),
        {**MOCK_HEADERS, "x-gateway-api-key": key, "x-gateway-provider": "@vk"},
    )
    return provider.ledger()[-1]["headers"].get("authorization") if provider.ledger() else None


@pytest.mark.parametrize("location", ["aws_sm", "hashicorp_vault"])
def test_external_master_key_encrypts_and_is_never_on_disk(
    provider: Mock, tmp_path: Path, vaults: MockSecretStores, location: str
):
    folder = tmp_path / "gateway"
    folder.mkdir()
    env, tables = store_env(vaults, folder, location), {"mock": {"host": provider.url}}
    with run_gateway(folder, tables, env=env) as gateway:
        admin = Client(gateway)
        (workspace,) = admin.read("/v1/workspaces")["data"]
        inside = {"workspace_id": workspace["id"]}
        admin.create("/v1/virtual-keys", {"name": "vk", "slug": "vk", "provider": "mock", "key": CREDENTIAL, **inside})
        app = admin.with_new_key(scopes=["completions.write"], **inside).key
        assert sent_credential(gateway, provider, app) == f"Bearer {CREDENTIAL}"
        # A control process that replaces a killed one still has the master key.
        vaults.away = True
        os.kill(control_pid(gateway), signal.SIGKILL)
        wait_for("another control process", lambda: admin.get("/v1/workspaces").status == 200 or None, 15)
        admin.create("/v1/virtual-keys", {"name": "v2", "provider": "mock", "key": CREDENTIAL, **inside})
        vaults.away = False
    with run_gateway(folder, tables, env=env) as gateway:
        assert sent_credential(gateway, provider, app) == f"Bearer {CREDENTIAL}"
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "penstock.db" in files
    assert "penstock.key" not in files
    assert not [name for name, content in files.items() if MASTER_KEY.encode() in content or b"kkkkkkkk" in content]


@pytest.mark.parametrize(
    ("location", "change", "words"),
    [
        ("aws_sm", {"secret_path": "none"}, "it cannot be fetched"),
        ("hashicorp_vault", {"secret_key": "none"}, "no field 'none'"),
        ("hashicorp_vault", {"secret_key": "other"}, "expected 32 bytes as base64"),
        ("hashicorp_vault", {"auth_config": {"vault_auth_type": "none"}}, "auth_config.vault_auth_type"),
        ("hashicorp_vault", {"odd": 1}, "odd"),
    ],
)
def test_start_without_master_key_reports_why_and_no_secrets(
    tmp_path: Path, vaults: MockSecretStores, location: str, change: dict[str, Any], words: str
):
    env = store_env(vaults, tmp_path, location, **change)
    done = run_penstock("serve", "--port", "0", env=env, cwd=tmp_path)
    assert done.returncode == 1
    assert words in done.stderr
    assert "store.master_key" in done.stderr
    for canary in (fakes.AWS_SECRET, fakes.VAULT_TOKEN, MASTER_KEY):
        assert canary not in done.stdout + done.stderr


def test_migration_that_encrypts_nothing_needs_no_master_key(tmp_path: Path, vaults: MockSecretStores):
    vaults.away = True
    # A store without tables; `migrate` creates none.
    (tmp_path / "penstock.db").touch()
    done = run_penstock("migrate", env=store_env(vaults, tmp_path, "hashicorp_vault"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_failed_migration_stops_the_start_but_an_outage_does_not(
    provider: Mock, tmp_path: Path, own_postgres: Postgres
):
    url = own_postgres.create_database()
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url, "PENSTOCK_STORE_MASTER_KEY": MASTER_KEY}
    tables = {"mock": {"host": provider.url}}
    run_init(tmp_path, env)
    with run_gateway(tmp_path, tables, env=env) as gateway:
        app = Client(gateway).with_new_key(scopes=["completions.write"], workspace_id=first_workspace_id(gateway)).key

    async def break_migration() -> None:
        database = Database(Store(), Secret(url))
        await migrate(database, "0004_files_and_batches")
        async with database.write_transaction() as connection:
            await connection.execute(text("create table changed (x int)"))
        await database.close()

    asyncio.run(break_migration())
    done = run_penstock("serve", "--port", "0", "--migrate", env=env, cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot be migrated" in done.stderr
    assert "changed" in done.stderr
    own_postgres.crash()
    gateway = Gateway(tmp_path, tables, env, ("--migrate",))
    assert (
        send_raw_request(gateway.base_url, CHAT_PATH, chat_body(), {**MOCK_HEADERS, "x-gateway-api-key": app}).status
        == 200
    )
    gateway.stop()


def first_workspace_id(gateway: Gateway) -> str:
    return Client(gateway).read("/v1/workspaces")["data"][0]["id"]


def test_serve_migrates_a_shared_database_only_on_request(provider: Mock, tmp_path: Path, postgres: Postgres):
    url = postgres.create_database()
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url, "PENSTOCK_STORE_MASTER_KEY": MASTER_KEY}
    run_init(tmp_path, env)

    async def migrate_and_read_revision(target: str | None = None) -> str | None:
        database = Database(Store(), Secret(url))
        try:
            if target:
                await migrate(database, target)
            return await current_revision(database)
        finally:
            await database.close()

    old = asyncio.run(migrate_and_read_revision("0004_files_and_batches"))
    for options, expected in (((), old), (("--migrate",), newest_revision())):
        gateway = Gateway(tmp_path, {"mock": {"host": provider.url}}, env, options)
        assert asyncio.run(migrate_and_read_revision()) == expected
        if expected == newest_revision():
            assert Client(gateway).read("/v1/workspaces")["total"] == 1
        gateway.stop()


def test_first_migrating_start_creates_the_organisation(tmp_path: Path, postgres: Postgres):
    env = {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": postgres.create_database(),
        "PENSTOCK_STORE_MASTER_KEY": MASTER_KEY,
    }
    gateway = Gateway(tmp_path, {}, env, ("--migrate",))
    assert Client(gateway).read("/v1/workspaces")["total"] == 1
    gateway.stop()
