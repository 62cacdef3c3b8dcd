"""Web console: its files over HTTP, and its pages in a real browser."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import NotFoundError
from penstock.resources.console import build_response
from tests.bootstrapped_store import ADMIN_KEY
from tests.fork_server import run_penstock
from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, send_raw_request
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.integration.conftest import StoreFactory
    from tests.integration.raw_http import Response
    from tests.redis_server import RedisServer

ONE_STORE = True
BASE_PATH = "/kept/gateway"
# The browser without its own windows and toolbars, which takes two thirds of the time of `chromium --headless`.
BROWSER = "chromium-headless-shell"
TABLES = {"log_store": {"enabled": True}, "server": {"base_path": BASE_PATH}}
NODE_TESTS_DIR = Path(__file__).parents[1] / "e2e/node"
MEMBER_EMAIL, MEMBER_PASSWORD = "member@example.com", "correct horse battery staple"
# Time after which a run counts as stuck; a slow machine may need far more than a fast one.
MAX_BROWSER_SECONDS = 900
PARALLEL_FILES = 4
VISIBLE_SECONDS = 10
ROOT = Path(__file__).parents[2]
MAX_PICTURE_BYTES = 200_000
FAULTY_MODEL = "mock-failing?status=503"
FILES = os.environ.get("PENSTOCK_CONSOLE_FILES", "*console*.test.mjs")
# The files that take the longest start first.
LONGEST_FILES = ["pages", "objects", "actions", "lists", "slow", "prompts"]
BROWSER_TESTS = sorted(
    (file.name for file in NODE_TESTS_DIR.glob(FILES)),
    key=lambda name: next((at for at, long in enumerate(LONGEST_FILES) if f"-{long}." in name), len(LONGEST_FILES)),
)
# Pattern of the names of the browser tests that run. All run without it.
PATTERN = os.environ.get("PENSTOCK_CONSOLE_TESTS", "")
FILTER = [f"--test-name-pattern={PATTERN}"] if PATTERN else []


def get_file(admin: Client, path: str, **headers: str) -> Response:
    return send_raw_request(admin.gateway.base_url, path, b"", headers, method="GET")


@pytest.fixture(scope="module")
def script(admin: Client) -> str:
    """Returns the path of the script that the document of the console loads."""
    document = get_file(admin, "/console/").body.decode()
    return "/console/" + document.partition('src="./')[2].partition('"')[0]


def test_document_is_never_stored_and_has_a_strict_policy(admin: Client):
    response = get_file(admin, "/console/")
    assert response.status == 200
    assert response.get_header("cache-control") == "no-store"
    assert response.get_header("content-type") == "text/html; charset=utf-8"
    policy = response.get_header("content-security-policy") or ""
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_address_of_a_page_returns_the_document_with_relative_files(admin: Client):
    root, page = get_file(admin, "/console/"), get_file(admin, "/console/logs/0199aaaa-0000-7000-8000-000000000001")
    assert page.body == root.body.replace(b'"./', b'"../')
    assert b'"../assets/' in page.body


def test_address_without_a_slash_redirects_relatively(admin: Client):
    response = get_file(admin, "/console")
    assert response.status == 302
    assert response.get_header("location") == "console/"


def test_script_is_compressed_and_immutable(admin: Client, script: str):
    compressed = get_file(admin, script, **{"accept-encoding": "gzip"})
    plain = get_file(admin, script)
    assert compressed.get_header("content-encoding") == "gzip"
    assert plain.get_header("content-encoding") is None
    assert gzip.decompress(compressed.body) == plain.body
    for response in (compressed, plain):
        assert "immutable" in (response.get_header("cache-control") or "")
        assert response.get_header("content-type") == "text/javascript; charset=utf-8"
        assert response.get_header("x-content-type-options") == "nosniff"


def test_unknown_file_is_not_found(admin: Client):
    expect_error(get_file(admin, "/console/assets/index-00000000.js"), 404, "AB08", "load the page again")


def test_missing_build_is_reported():
    with pytest.raises(NotFoundError, match="make console"):
        build_response({}, "", accepts_gzip=True)


@pytest.fixture(scope="module")
def console_objects(admin: Client) -> dict[str, str]:
    """Fills the gateway with one object of each kind; returns what the browser tests need of them."""
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    integration = {"name": "Mock", "ai_provider_id": "mock", "key": "sk-of-the-provider-0123456789"}
    slug = admin.create("/v1/integrations", integration)["slug"]
    enabled = {"workspaces": [{"id": workspace, "enabled": True}]}
    expect_ok(admin.put(f"/v1/integrations/{slug}/workspaces", enabled))
    within: dict[str, Any] = {"workspace_id": workspace}
    provider = admin.create("/v1/providers", {"name": "Mock", "slug": "mock-main", "integration_id": slug, **within})
    config = admin.create("/v1/configs", {"name": "main", "config": {"provider": "mock"}, **within})
    prompt = {"name": "Greeting", "virtual_key": "mock-main", "model": "mock", "parameters": {}, **within}
    messages = [{"role": "user", "content": "Greet {{name}}"}]
    made_prompt = admin.create("/v1/prompts", {**prompt, "string": json.dumps(messages)})
    hook = {"webhookURL": "https://hooks.example/check", "headers": {"authorization": "a-token-0123456789"}}
    checks = [
        {"id": "default.wordCount", "parameters": {"maxWords": 200}},
        {"id": "default.webhook", "parameters": hook, "is_enabled": False},
    ]
    guardrail = admin.create("/v1/guardrails", {"name": "Short questions", "checks": checks, **within})
    policy = {"name": "budget", "conditions": [{"key": "model", "value": "*"}], "group_by": [{"key": "api_key"}]}
    budget = admin.create("/v1/policies/usage-limits", {**policy, "type": "cost", "credit_limit": 20, **within})
    invite = {"email": MEMBER_EMAIL, "role": "member", "first_name": "Mia", "last_name": "Member"}
    link = admin.create("/v1/admin/users/invites", {**invite, "workspaces": [{"id": workspace, "role": "member"}]})
    token = link["invite_link"].rpartition("=")[2]
    accepted = {"token": token, "password": MEMBER_PASSWORD}
    expect_ok(Client(admin.gateway, "").post("/v1/auth/invites", accepted))
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])
    partial = admin.create("/v1/prompts/partials", {"name": "House style", "string": "Be {{mood}}.", **within})
    vault = {"vault_auth_type": "token", "vault_addr": "https://vault.example", "vault_token": "t-0123456789"}
    secret = {
        "name": "OpenAI key",
        "manager_type": "hashicorp_vault",
        "auth_config": vault,
        "secret_path": "llm/openai",
    }
    names = {
        "CONFIG": config["id"],
        "INTEGRATION": slug,
        "PARTIAL": partial["id"],
        "SECRET": admin.create("/v1/secret-references", secret)["id"],
        "WORKSPACE": workspace,
        "PROMPT": made_prompt["id"],
        "GUARDRAIL": guardrail["id"],
        "KEY": key.key,
        "KEY_ID": admin.read("/v1/api-keys?search=key%20of%20a%20test")["data"][0]["id"],
        "POLICY": budget["id"],
        "PROVIDER": provider["id"],
    }
    return {**names, "LOG": send_logged_chat(admin, key), "FAILED_LOG": send_failed_chat(admin, key)}


def send_failed_chat(admin: Client, key: Client) -> str:
    """Sends a chat that the provider rejects, and returns the id of its log, as soon as it is visible."""
    headers = {"x-gateway-api-key": key.key, "content-type": "application/json", "x-gateway-provider": "@mock-main"}
    body = {"model": FAULTY_MODEL, "messages": [{"role": "user", "content": "hello"}]}
    response = send_raw_request(admin.gateway.base_url, CHAT_PATH, json.dumps(body).encode(), headers)
    log_id = response.get_header("x-gateway-request-id") or ""
    wait_for("the log", lambda: admin.get(f"/v1/logs/{log_id}").status == 200 or None, VISIBLE_SECONDS)
    return log_id


def send_logged_chat(admin: Client, key: Client) -> str:
    """Sends a chat and returns the id of its log, as soon as it is visible."""
    headers = {"x-gateway-api-key": key.key, "content-type": "application/json", "x-gateway-provider": "@mock-main"}
    headers["x-gateway-trace-id"] = "order-17"
    body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}

    def send_chat() -> Response | None:
        response = send_raw_request(admin.gateway.base_url, CHAT_PATH, json.dumps(body).encode(), headers)
        return response if response.status == 200 else None

    log_id = wait_for("the key", send_chat).get_header("x-gateway-request-id") or ""
    wait_for("the log", lambda: admin.get(f"/v1/logs/{log_id}").status == 200 or None, VISIBLE_SECONDS)
    return log_id


def run_browser_tests(admin: Client, environment: dict[str, str], *files: str) -> str:
    """Runs files of browser tests and returns their report. Fails with the report if one of them fails."""
    options = [f"--test-timeout={MAX_BROWSER_SECONDS * 1000}", f"--test-concurrency={PARALLEL_FILES}", *FILTER]
    settings = {
        "GATEWAY": admin.gateway.base_url,
        "ADMIN_KEY": ADMIN_KEY,
        "BASE_PATH": BASE_PATH,
        "MEMBER_EMAIL": MEMBER_EMAIL,
        "MEMBER_PASSWORD": MEMBER_PASSWORD,
        "CHROMIUM": shutil.which(BROWSER) or BROWSER,
        "PICTURES": os.environ.get("PENSTOCK_CONSOLE_PICTURES", ""),
        "README_PICTURE": os.environ.get("PENSTOCK_README_PICTURE", ""),
    }
    try:
        done = subprocess.run(
            [shutil.which("node") or "node", "run-console.mjs", *options, *files],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAX_BROWSER_SECONDS,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(admin.gateway.folder), **settings, **environment},
            cwd=NODE_TESTS_DIR,
        )
    except subprocess.TimeoutExpired as error:
        report = (error.stdout or b"").decode(errors="replace")
        pytest.fail(f"{report}\nthe browser tests ran longer than {MAX_BROWSER_SECONDS} s", pytrace=False)
    if done.returncode:
        pytest.fail(done.stdout, pytrace=False)
    return done.stdout


@pytest.mark.slow(220)
@pytest.mark.timeout(MAX_BROWSER_SECONDS + 20)
def test_pages_in_a_browser(admin: Client, console_objects: dict[str, str]):
    """Also redraws docs/console.png if `PENSTOCK_README_PICTURE` contains its absolute path."""
    gateway = admin.gateway
    command = ("users", "sign-in-link", "--config", str(gateway.config_file), "--url", gateway.base_url)
    link = run_penstock(*command, env=gateway.env, cwd=gateway.folder).stdout.strip()
    report = run_browser_tests(admin, {**console_objects, "SIGN_IN_LINK": link}, *BROWSER_TESTS)
    print(report)


@pytest.mark.slow(10)
@pytest.mark.timeout(MAX_BROWSER_SECONDS + 20)
def test_system_page_shows_redis(redis: RedisServer, new_store: StoreFactory, tmp_path: Path):
    tables = {**TABLES, "redis": {"url": redis.url}}
    with run_gateway(tmp_path, tables, env=new_store(tmp_path)) as gateway:
        run_browser_tests(Client(gateway), {"REDIS_PID": str(redis.program.pid)}, "redis.console.mjs")


def test_readme_shows_the_console():
    assert (ROOT / "docs/console.png").stat().st_size < MAX_PICTURE_BYTES
    assert "docs/console.png" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.figures
@pytest.mark.timeout(MAX_BROWSER_SECONDS + 20)
def test_times_in_a_browser(admin: Client, console_objects: dict[str, str]):
    report = run_browser_tests(admin, console_objects, "figures.console.mjs")
    print("".join(line + "\n" for line in report.splitlines() if line.startswith("# ")))
