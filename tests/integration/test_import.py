"""Moving in from LiteLLM: its configuration and its database are imported and applied, and clients work unchanged."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from ruamel.yaml import YAML
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from penstock.settings.secret import Secret
from penstock.store.database import parse_url
from tests.fork_server import run_penstock
from tests.gateway import ROOT
from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.integration.test_administer import run_command
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.management_client import Client
    from tests.postgres import Postgres

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True
SALT_KEY = "sk-salt-of-the-tests-0123456789"
OLD_KEY, LIMITED_KEY, TEAM_KEY, SPENT_KEY = (
    "sk-old-key-of-an-app-01234",
    "sk-old-limited-key-01234567",
    "sk-old-team-key-012345678",
    "sk-old-spent-key-01234567",
)
PROVIDER_KEY = "sk-canary-of-the-provider"
# The columns that this version of LiteLLM has; other versions have more.
SCHEMA = """
CREATE TABLE "LiteLLM_ProxyModelTable" (model_id text PRIMARY KEY, model_name text, litellm_params jsonb,
  model_info jsonb, created_at timestamp(3) DEFAULT now(), created_by text);
CREATE TABLE "LiteLLM_TeamTable" (team_id text PRIMARY KEY, team_alias text, models text[], max_budget float8,
  spend float8 DEFAULT 0, tpm_limit bigint, rpm_limit bigint, budget_duration text, blocked boolean DEFAULT false,
  metadata jsonb DEFAULT '{}', members_with_roles jsonb DEFAULT '{}', created_at timestamp(3) DEFAULT now());
CREATE TABLE "LiteLLM_VerificationToken" (token text PRIMARY KEY, key_name text, key_alias text, spend float8 DEFAULT 0,
  expires timestamp(3), models text[] DEFAULT '{}', aliases jsonb DEFAULT '{}', config jsonb DEFAULT '{}', user_id text,
  team_id text, permissions jsonb DEFAULT '{}', metadata jsonb DEFAULT '{}', blocked boolean, tpm_limit bigint,
  rpm_limit bigint, max_budget float8, budget_duration text, created_at timestamp(3) DEFAULT now());
"""


def encrypt(value: str, salt_key: str = SALT_KEY) -> str:
    nonce, key = os.urandom(12), hashlib.sha256(salt_key.encode()).digest()
    return "v2:gcm:" + base64.urlsafe_b64encode(nonce + AESGCM(key).encrypt(nonce, value.encode(), None)).decode()


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def fill_database(url: str, provider_url: str) -> None:
    """Creates the tables, with one model, one team and five keys."""
    params = {name: encrypt(value) for name, value in {"model": "openai/mock", "api_key": PROVIDER_KEY}.items()}
    params["api_base"] = encrypt(f"{provider_url}/v1")
    rows: list[tuple[str, dict[str, Any]]] = [
        (
            'INSERT INTO "LiteLLM_ProxyModelTable" (model_id, model_name, litellm_params) VALUES (:i, :n, :p)',
            {"i": "m-1", "n": "from-database", "p": json.dumps(params)},
        ),
        (
            (
                'INSERT INTO "LiteLLM_TeamTable" (team_id, team_alias, models, max_budget, budget_duration, spend) '
                "VALUES ('t-1', 'Red team', '{}', 100, '30d', 40.25)"
            ),
            {},
        ),
    ]
    add = 'INSERT INTO "LiteLLM_VerificationToken" '
    add += "(token, key_alias, models, team_id, rpm_limit, blocked, max_budget, spend) "
    values = "VALUES (:token, :alias, :models, :team, :rpm, :blocked, :budget, :spend)"
    empty = {"models": [], "team": None, "rpm": None, "blocked": None, "budget": None, "spend": 0}
    rows += [
        (add + values, {**empty, "token": sha256(OLD_KEY), "alias": "app"}),
        (
            add + values,
            {**empty, "token": sha256(LIMITED_KEY), "alias": "limited", "models": ["fast"], "rpm": 1000, "budget": 50},
        ),
        (add + values, {**empty, "token": sha256(TEAM_KEY), "alias": "red", "team": "t-1"}),
        (add + values, {**empty, "token": sha256(SPENT_KEY), "alias": "spent", "budget": 5, "spend": 7.5}),
        (add + values, {**empty, "token": sha256("sk-blocked"), "alias": "blocked", "blocked": True}),
    ]

    async def run() -> None:
        engine = create_async_engine(parse_url(Secret(url)))
        async with engine.begin() as connection:
            for statement in SCHEMA.strip().split(";\n"):
                await connection.execute(text(statement))
            for statement, values in rows:
                await connection.execute(text(statement), values)
        await engine.dispose()

    asyncio.run(run())


@pytest.fixture(scope="module")
def database(postgres: Postgres, provider: Mock) -> str:
    """Returns the URL of a database of LiteLLM."""
    url = postgres.create_database()
    fill_database(url, provider.url)
    return url


@pytest.fixture(scope="module")
def environment_variables() -> dict[str, str]:
    return {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1"}


@pytest.fixture(scope="module")
def import_report(
    admin: Client, database: str, provider: Mock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Imports and applies everything once; returns the report."""
    folder = tmp_path_factory.mktemp("imported")
    model = {"model": "openai/mock", "api_key": "os.environ/OLD_PROVIDER_KEY", "api_base": f"{provider.url}/v1"}
    broken = {**model, "model": "openai/mock?fault=429"}
    config = {
        "model_list": [
            {"model_name": "gpt-of-old", "litellm_params": model},
            {"model_name": "fast", "litellm_params": {**model, "temperature": 0.5}},
            {"model_name": "fragile", "litellm_params": broken},
            {"model_name": "house/*", "litellm_params": {**model, "model": "openai/*"}},
        ],
        "router_settings": {"model_group_alias": {"alias-of-old": "gpt-of-old"}, "fallbacks": [{"fragile": ["fast"]}]},
    }
    source = folder / "config.yaml"
    source.write_text(json.dumps(config))
    state, report = folder / "state.yaml", folder / "report.json"
    words = ["import", "litellm", str(source), "--database", database, "--salt-key-env", "SALT"]
    done = run_penstock(*words, "--out", str(state), "--report", str(report), env={"SALT": SALT_KEY})
    assert done.returncode == 0, done
    for location in (done.stdout, done.stderr, report.read_text()):
        assert not [secret for secret in (PROVIDER_KEY, SALT_KEY, sha256(OLD_KEY)) if secret in location]
    assert state.stat().st_mode & 0o777 == 0o600
    applied = run_command(admin, "apply", str(state), "--yes", OLD_PROVIDER_KEY=PROVIDER_KEY)
    assert "api_keys app" in applied
    assert "shown this once" not in applied
    assert run_command(admin, "apply", str(state), "--yes", OLD_PROVIDER_KEY=PROVIDER_KEY).strip() == "nothing to do"
    yield json.loads(report.read_text())
    assert YAML(typ="safe").load(run_command(admin, "export"))


def send(gateway: Gateway, key: str, model: str) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    response = send_raw_request(gateway.base_url, CHAT_PATH, chat_body(model), headers)
    return response.status, response.json()


def wait_until_valid(gateway: Gateway, key: str, model: str) -> None:
    wait_for("the imported key", lambda: send(gateway, key, model)[0] == 200 or None, 5)


@pytest.mark.parametrize("model", ["gpt-of-old", "alias-of-old", "fast", "from-database"])
def test_old_keys_and_model_names_work_unchanged(
    admin: Client, import_report: dict[str, Any], provider: Mock, model: str
):
    assert import_report["summary"]["unsupported"] == 0
    wait_until_valid(admin.gateway, OLD_KEY, model)
    sent = provider.ledger()[-1]
    assert sent["headers"]["authorization"] == f"Bearer {PROVIDER_KEY}"


def test_imported_key_lists_models(admin: Client, import_report: dict[str, Any]):
    assert import_report
    wait_until_valid(admin.gateway, OLD_KEY, "fast")
    headers = {"authorization": f"Bearer {OLD_KEY}"}
    response = send_raw_request(admin.gateway.base_url, "/v1/models", None, headers)
    assert response.status == 200, response.body
    assert any(item["id"].startswith("@openai") for item in response.json()["data"])


def test_falls_back_as_litellm_does(admin: Client, import_report: dict[str, Any], provider: Mock):
    assert import_report
    wait_until_valid(admin.gateway, OLD_KEY, "fragile")
    assert [item["model"] for item in provider.ledger()][-2:] == ["mock?fault=429", "mock"]


def test_key_of_a_team_works_in_its_workspace(admin: Client, import_report: dict[str, Any]):
    assert import_report
    wait_until_valid(admin.gateway, TEAM_KEY, "fast")
    workspace = admin.read("/v1/workspaces/litellm-red-team")
    assert workspace["usage_limits"][0]["credit_limit"] == 100
    assert workspace["current_usage"] == 40.25


def test_budget_that_was_spent_rejects_requests(admin: Client, import_report: dict[str, Any]):
    assert import_report
    wait_for("the rejection", lambda: send(admin.gateway, SPENT_KEY, "fast")[0] == 412 or None, 5)
    (spent,) = [row for row in admin.read("/v1/api-keys")["data"] if row["name"] == "spent"]
    assert spent["current_usage"] >= 7.5


def test_model_of_a_whole_provider_is_sent_without_its_prefix(
    admin: Client, import_report: dict[str, Any], provider: Mock
):
    assert import_report
    wait_until_valid(admin.gateway, OLD_KEY, "house/mock")
    assert provider.ledger()[-1]["model"] == "mock"


def test_initial_usage_needs_a_limit_of_cost(admin: Client):
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    body = {"name": "x", "scopes": ["completions.write"], "workspace_id": workspace, "initial_usage": 3}
    for limits in ({}, {"usage_limits": {"type": "tokens", "credit_limit": 100}}):
        rejected = admin.post("/v1/api-keys/workspace/service", {**body, **limits})
        assert (rejected.status, rejected.json()["data"]["errors"][0]["path"]) == (400, "initial_usage")
    rejected = admin.post("/v1/admin/workspaces", {"name": "x", "initial_usage": 3})
    assert (rejected.status, rejected.json()["data"]["errors"][0]["path"]) == (400, "initial_usage")


def test_rejects_models_that_the_key_or_the_config_does_not_have(admin: Client, import_report: dict[str, Any]):
    assert import_report
    wait_until_valid(admin.gateway, LIMITED_KEY, "fast")
    for key, model in ((LIMITED_KEY, "gpt-of-old"), (OLD_KEY, "unknown")):
        status, body = send(admin.gateway, key, model)
        assert status == 400, body
        assert "model-is-not-in-the-imported-config" in json.dumps(body)


def test_rejects_blocked_and_unknown_keys(admin: Client, import_report: dict[str, Any]):
    assert import_report
    assert send(admin.gateway, "sk-blocked", "fast")[0] == 401
    assert send(admin.gateway, "sk-never-heard-of", "fast")[0] == 401


@pytest.mark.parametrize(("salt", "message"), [("wrong", "does not decrypt"), (None, "--salt-key-env")])
def test_wrong_salt_key_imports_nothing(database: str, tmp_path: Path, salt: str | None, message: str):
    words = ["import", "litellm", "--database", database, *(["--salt-key-env", "SALT"] if salt else [])]
    out, report = tmp_path / "state.yaml", tmp_path / "report.json"
    done = run_penstock(*words, "--out", str(out), "--report", str(report), env={"SALT": salt or ""})
    assert done.returncode == 1
    assert message in done.stderr
    assert PROVIDER_KEY not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_digest_of_a_key_is_for_admins_of_the_organisation(admin: Client, import_report: dict[str, Any]):
    assert import_report
    scopes = ["workspace_service_api_keys.create", "completions.write"]
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    limited = admin.with_new_key(workspace_id=workspace, scopes=scopes)
    body = {"name": "x", "scopes": ["completions.write"], "key_sha256": sha256("sk-weak")}
    denied = limited.post("/v1/api-keys/workspace/service", body)
    assert denied.status == 403
    assert "key_sha256" in denied.json()["data"]["message"]
    used = admin.post(
        "/v1/api-keys/workspace/service", {**body, "workspace_id": workspace, "key_sha256": sha256(OLD_KEY)}
    )
    assert used.status == 409
    wrong = admin.post("/v1/api-keys/workspace/service", {**body, "workspace_id": workspace, "key_sha256": "ABC"})
    assert wrong.status == 400
    assert wrong.json()["data"]["errors"][0]["path"] == "key_sha256"


@pytest.mark.parametrize("product", ["portkey", "tensorzero"])
def test_other_gateways_are_imported_and_applied(admin: Client, tmp_path: Path, product: str):
    page = (ROOT / f"docs/migrate-from-{product}.md").read_text()
    kind = {"portkey": "json", "tensorzero": "toml"}[product]
    (tmp_path / f"source.{kind}").write_text(re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0])
    words = ["import", product, str(tmp_path / f"source.{kind}")]
    out = tmp_path / "state.yaml"
    done = run_penstock(*words, "--out", str(out), "--report", str(tmp_path / "report.json"), env={})
    assert done.returncode == 0, done
    names = ("PORTKEY_OPENAI_PROD_KEY", "OPENAI_API_KEY", "AZURE_API_KEY", "ANTHROPIC_API_KEY")
    values = dict.fromkeys(names, "sk-canary-of-a-provider")
    assert "done" in run_command(admin, "apply", str(out), "--yes", **values)
    assert run_command(admin, "apply", str(out), "--yes", **values).strip() == "nothing to do"


def test_applied_change_of_a_prompt_is_published(admin: Client, tmp_path: Path):
    prompt = {"slug": "changing", "name": "Changing", "string": "one", "virtual_key": "x", "model": "m"}
    file = tmp_path / "state.yaml"
    for template in ("one", "two"):
        location = {"name": "Prompts", "slug": "prompts-of-a-file", "prompts": [{**prompt, "string": template}]}
        file.write_text(json.dumps({"version": 1, "workspaces": [location]}))
        run_command(admin, "apply", str(file), "--yes")
        assert run_command(admin, "apply", str(file), "--yes").strip() == "nothing to do"
        assert admin.read("/v1/prompts/changing?version=default")["string"] == template
