"""A master key that AWS or HashiCorp keep, and a start that migrates when asked to."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from penstock.settings import Store
from penstock.settings.secret import Secret
from penstock.store.database import Database
from penstock.store.migrate import current_revision, migrate, newest_revision
from tests.gateway import Gateway
from tests.integration import vaults as fakes
from tests.integration.conftest import initialise
from tests.integration.managed import ADMIN_KEY, Client
from tests.integration.serving import control, running
from tests.integration.vaults import Vaults
from tests.integration.wire import CHAT, MOCK, ask, asked
from tests.processes import wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.gateway import Mock
    from tests.postgres import Postgres

KEY = base64.b64encode(b"k" * 32).decode()
CREDENTIAL = "sk-sealed-0123456789"


@pytest.fixture
def vaults(tmp_path: Path) -> Iterator[Vaults]:
    folder = tmp_path / "vaults"
    folder.mkdir()
    fake = Vaults(folder)
    fake.kept |= {"/prod/key": KEY, "secret/app": json.dumps({"master": f"{KEY}\n", "other": "x"})}
    yield fake
    fake.stop()


def references(vaults: Vaults) -> dict[str, dict[str, Any]]:
    aws = {"aws_auth_type": "accessKey", "aws_access_key_id": fakes.AWS_KEY, "aws_region": "eu-west-1"}
    vault = {"vault_auth_type": "token", "vault_token": fakes.VAULT_TOKEN, "vault_addr": vaults.url}
    return {
        "aws_sm": {
            "auth_config": {**aws, "aws_secret_access_key": fakes.AWS_SECRET},
            "secret_path": "/prod/key",
        },
        "hashicorp_vault": {"auth_config": vault, "secret_path": "secret/data/app", "secret_key": "master"},
    }


def surroundings(vaults: Vaults, folder: Path, place: str, **more: object) -> Mapping[str, str]:
    reference = {"manager_type": place, **references(vaults)[place], **more}
    return {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": f"sqlite:///{folder}/penstock.db",
        "PENSTOCK_STORE_MASTER_KEY_REFERENCE": json.dumps(reference),
        "PENSTOCK_SECRETS_AWS_ENDPOINT_URL": vaults.url,
        "TLS_CA": str(vaults.ca),
    }


def sent(gateway: Gateway, provider: Mock, key: str) -> str | None:
    provider.forget()
    ask(gateway.base_url, CHAT, asked(), {**MOCK, "x-gateway-api-key": key, "x-gateway-provider": "@vk"})
    return provider.ledger()[-1]["headers"].get("authorization") if provider.ledger() else None


@pytest.mark.parametrize("place", ["aws_sm", "hashicorp_vault"])
def test_what_others_keep_seals_and_opens_and_is_on_no_disk_of_ours(
    provider: Mock, tmp_path: Path, vaults: Vaults, place: str
):
    folder = tmp_path / "gateway"
    folder.mkdir()
    env, tables = surroundings(vaults, folder, place), {"mock": {"host": provider.url}}
    with running(folder, tables, env=env) as gateway:
        admin = Client(gateway)
        (workspace,) = admin.shown("/v1/workspaces")["data"]
        inside = {"workspace_id": workspace["id"]}
        admin.made("/v1/virtual-keys", {"name": "vk", "slug": "vk", "provider": "mock", "key": CREDENTIAL, **inside})
        app = admin.with_key(scopes=["completions.write"], **inside).key
        assert sent(gateway, provider, app) == f"Bearer {CREDENTIAL}"
        # Whoever is started anew in place of what was killed has it still.
        vaults.away = True
        os.kill(control(gateway), signal.SIGKILL)
        wait("another control process", lambda: admin.get("/v1/workspaces").status == 200 or None, 15)
        admin.made("/v1/virtual-keys", {"name": "v2", "provider": "mock", "key": CREDENTIAL, **inside})
        vaults.away = False
    with running(folder, tables, env=env) as gateway:
        assert sent(gateway, provider, app) == f"Bearer {CREDENTIAL}"
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "penstock.db" in files
    assert "penstock.key" not in files
    assert not [name for name, content in files.items() if KEY.encode() in content or b"kkkkkkkk" in content]


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        ("aws_sm", {"secret_path": "none"}, "it cannot be had"),
        ("hashicorp_vault", {"secret_key": "none"}, "no field 'none'"),
        ("hashicorp_vault", {"secret_key": "other"}, "expected 32 bytes as base64"),
        ("hashicorp_vault", {"auth_config": {"vault_auth_type": "none"}}, "auth_config.vault_auth_type"),
        ("hashicorp_vault", {"odd": 1}, "odd"),
    ],
)
def test_a_start_without_it_says_why_and_shows_nothing_of_it(
    tmp_path: Path, vaults: Vaults, place: str, change: dict[str, Any], words: str
):
    env = surroundings(vaults, tmp_path, place, **change)
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=30)
    assert done.returncode == 1
    assert words in done.stderr
    assert "store.master_key" in done.stderr
    for canary in (fakes.AWS_SECRET, fakes.VAULT_TOKEN, KEY):
        assert canary not in done.stdout + done.stderr


def test_a_migration_that_seals_nothing_needs_no_master_key(tmp_path: Path, vaults: Vaults):
    vaults.away = True
    command = [sys.executable, "-m", "penstock", "migrate"]
    env = surroundings(vaults, tmp_path, "hashicorp_vault")
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_start_ends_where_its_migration_fails_and_goes_on_where_the_database_is_away(
    provider: Mock, tmp_path: Path, own_postgres: Postgres
):
    url = own_postgres.database()
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url, "PENSTOCK_STORE_MASTER_KEY": KEY}
    tables = {"mock": {"host": provider.url}}
    initialise(tmp_path, env)
    with running(tmp_path, tables, env=env) as gateway:
        app = Client(gateway).with_key(scopes=["completions.write"], workspace_id=first_place(gateway)).key

    async def break_it() -> None:
        database = Database(Store(), Secret(url))
        await migrate(database, "0005_files")
        async with database.write_transaction() as connection:
            await connection.execute(text("create table changed (x int)"))
        await database.close()

    asyncio.run(break_it())
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--migrate"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=30)
    assert done.returncode == 1
    assert "cannot be migrated" in done.stderr
    assert "changed" in done.stderr
    own_postgres.crash()
    gateway = Gateway(tmp_path, tables, env, ("--migrate",))
    assert ask(gateway.base_url, CHAT, asked(), {**MOCK, "x-gateway-api-key": app}).status == 200
    gateway.stop()


def first_place(gateway: Gateway) -> str:
    return Client(gateway).shown("/v1/workspaces")["data"][0]["id"]


def test_serve_migrates_a_store_of_a_cluster_when_asked_to_and_not_else(
    provider: Mock, tmp_path: Path, postgres: Postgres
):
    url = postgres.database()
    env = {"PENSTOCK_ADMIN_KEY": ADMIN_KEY, "PENSTOCK_STORE_URL": url, "PENSTOCK_STORE_MASTER_KEY": KEY}
    initialise(tmp_path, env)

    async def at(target: str | None = None) -> str | None:
        database = Database(Store(), Secret(url))
        try:
            if target:
                await migrate(database, target)
            return await current_revision(database)
        finally:
            await database.close()

    old = asyncio.run(at("0005_files"))
    for options, expected in (((), old), (("--migrate",), newest_revision())):
        gateway = Gateway(tmp_path, {"mock": {"host": provider.url}}, env, options)
        assert asyncio.run(at()) == expected
        if expected == newest_revision():
            assert Client(gateway).shown("/v1/workspaces")["total"] == 1
        gateway.stop()


def test_a_first_start_that_migrates_founds_the_organisation_with_the_key_that_it_was_given(
    tmp_path: Path, postgres: Postgres
):
    env = {
        "PENSTOCK_ADMIN_KEY": ADMIN_KEY,
        "PENSTOCK_STORE_URL": postgres.database(),
        "PENSTOCK_STORE_MASTER_KEY": KEY,
    }
    gateway = Gateway(tmp_path, {}, env, ("--migrate",))
    assert Client(gateway).shown("/v1/workspaces")["total"] == 1
    gateway.stop()
