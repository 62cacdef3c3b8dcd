"""Saved guardrails, from the management API to requests and the logs."""

from __future__ import annotations

import json
import queue
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, Response
from tests.integration.serving import run_gateway
from tests.otel_collector import OtelCollector
from tests.processes import free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory

ONE_STORE = True
SCOPES = ["completions.write", "logs.list", "logs.view", "guardrails.create", "guardrails.update", "guardrails.read"]
CHECKS = [{"id": "default.contains", "parameters": {"words": ["canary"], "operator": "none"}}]


@pytest.fixture(scope="module")
def collector() -> Iterator[OtelCollector]:
    with OtelCollector() as collector:
        yield collector


@pytest.fixture(scope="module")
def running_gateway(
    provider: Mock, collector: OtelCollector, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("guardrails")
    tables = {"mock": {"host": provider.url}, "server": {"workers": 2}, "log_store": {"enabled": True}}
    tables["upstream"] = {"trusted_custom_hosts": ["localhost"]}
    # Bodies are one file per record, as in a bucket.
    tables["log_store"]["format"] = "v2"
    env = {**new_store(folder), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "PENSTOCK_OTEL_CONTENT": "true"}
    with run_gateway(folder, tables, env=env) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def admin(running_gateway: Gateway) -> Client:
    return Client(running_gateway)


@pytest.fixture(scope="module")
def workspace(admin: Client) -> str:
    return admin.create("/v1/workspaces", {"name": "guarded"})["id"]


@pytest.fixture(scope="module")
def team(admin: Client, workspace: str) -> Client:
    """Returns a client with a key of the workspace."""
    body = {"name": "k", "workspace_id": workspace, "scopes": SCOPES}
    key = admin.create("/v1/api-keys/workspace/service", body)
    return Client(admin.gateway, key["key"])


def ask(client: Client, text: str, **fields: str) -> Response:
    caller = Client(client.gateway, client.key, {**MOCK_HEADERS, **fields})
    return caller.post(CHAT_PATH, {"model": "mock", "messages": [{"role": "user", "content": text}]})


def set_defaults(admin: Client, workspace: str, names: list[str]) -> None:
    expect_ok(admin.put(f"/v1/workspaces/{workspace}", {"defaults": {"input_guardrails": names}}))


def test_default_guardrail_denies_requests_until_it_is_changed(
    admin: Client, workspace: str, team: Client, provider: Mock
):
    guardrail = team.create("/v1/guardrails", {"name": "No canary", "checks": CHECKS, "actions": {"deny": True}})
    assert ask(team, "a canary").status == 200
    set_defaults(admin, workspace, [guardrail["slug"]])

    def find_denial() -> Response | None:
        # One worker may have the default before the other.
        provider.clear_ledger()
        response = ask(team, "a canary")
        return response if response.status == 446 else None

    denied = wait_for("the default", find_denial)
    (result,) = denied.json()["hook_results"]["before_request_hooks"]
    assert (denied.status, result["id"], result["deny"]) == (446, guardrail["slug"], True)
    assert provider.ledger() == []
    assert ask(team, "hello").status == 200

    def find_log() -> dict[str, Any] | None:
        rows = team.read("/v1/logs?time_of_generation_min=2020-01-01T00:00:00Z&page_size=100")["data"]
        return next((row for row in rows if row["response_status_code"] == 446), None)

    row = wait_for("the log of the denied request", find_log)
    recorded = team.read(f"/v1/logs/{row['id']}")["details"]["hook_results"]["before_request_hooks"]
    assert [(item["id"], item["verdict"]) for item in recorded] == [(guardrail["slug"], False)]
    # A new version applies to the next request.
    expect_ok(team.put(f"/v1/guardrails/{guardrail['slug']}", {"actions": {"deny": False}}))
    wait_for("the new version", lambda: ask(team, "a canary").status == 246 or None)
    in_use = admin.delete(f"/v1/guardrails/{guardrail['slug']}")
    assert in_use.status == 409
    set_defaults(admin, workspace, [])
    wait_for("the removed default", lambda: ask(team, "a canary").status == 200 or None)


def test_config_names_a_guardrail(team: Client):
    guardrail = team.create("/v1/guardrails", {"name": "Named", "checks": CHECKS, "actions": {"deny": True}})
    config = '{"provider": "mock", "input_guardrails": ["%s"]}'
    assert ask(team, "a canary", **{"x-gateway-config": config % guardrail["slug"]}).status == 446
    assert ask(team, "hello", **{"x-gateway-config": config % guardrail["slug"]}).status == 200
    unknown = ask(team, "hello", **{"x-gateway-config": config % "pg-none"})
    assert (unknown.status, unknown.json()["error"]["code"]) == (400, "not_found_in_workspace")


def try_saved(team: Client, name: str, **subject: Any) -> dict[str, Any]:
    return expect_ok(team.post(f"/v1/guardrails/{name}/test", subject))


def test_saved_guardrail_is_tried_on_texts_and_bodies(team: Client, provider: Mock):
    guardrail = team.create("/v1/guardrails", {"name": "Tried", "checks": CHECKS, "actions": {"deny": True}})
    provider.clear_ledger()
    denied = try_saved(team, guardrail["slug"], text="a canary")
    assert (denied["verdict"], denied["denied"], denied["results"][0]["checks"][0]["id"]) == (
        False,
        True,
        "default.contains",
    )
    passed = try_saved(team, guardrail["slug"], text="hello")
    assert (passed["verdict"], passed["denied"], passed["texts"]) == (True, False, ["hello"])
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "a canary"}]}]}
    assert try_saved(team, guardrail["slug"], request=body)["denied"]
    response = {"role": "assistant", "content": [{"type": "text", "text": "a canary"}], "type": "message"}
    assert try_saved(team, guardrail["slug"], stage="output", response=response)["denied"]
    assert try_saved(team, guardrail["slug"], stage="output", text="a canary")["denied"]
    assert provider.ledger() == []


def test_checks_are_tried_before_they_are_saved(team: Client):
    checks = [{"id": "gateway.pii", "parameters": {"categories": ["EMAIL_ADDRESS"], "redact": True}}]
    actual = expect_ok(team.post("/v1/guardrails/test", {"checks": checks, "text": "to ann@example.com"}))
    assert (actual["transformed"], actual["denied"]) == (True, False)
    assert "ann@example.com" not in actual["texts"][0]
    assert actual["body"]["messages"][0]["content"] == actual["texts"][0]


def test_trial_connects_to_no_private_host(team: Client):
    with socket.create_server(("127.0.0.1", free_port())) as private:
        private.setblocking(False)
        url = f"http://127.0.0.1:{private.getsockname()[1]}/hook"
        hook = [{"id": "default.webhook", "parameters": {"webhookURL": url}}]
        actual = expect_ok(team.post("/v1/guardrails/test", {"checks": hook, "text": "x"}))
        assert "could not be reached" in actual["results"][0]["checks"][0]["error"]["message"]
        with pytest.raises(BlockingIOError):
            private.accept()


@pytest.mark.parametrize(
    ("subject", "path"),
    [
        ({}, "text"),
        ({"stage": "output"}, "text"),
        ({"stage": "output", "request": {}}, "text"),
        ({"text": "x", "request": {}}, "request"),
        ({"text": "x", "response": {}}, "response"),
        ({"request": {}, "response": {}}, "response"),
        ({"stage": "between", "text": "x"}, "stage"),
        ({"text": "x", "checks": []}, "checks"),
        ({"text": "x", "checks": [{"id": "none"}]}, "checks[0].id"),
    ],
)
def test_invalid_trial_names_the_field(team: Client, subject: dict[str, Any], path: str):
    response = team.post("/v1/guardrails/test", {"checks": CHECKS, **subject})
    assert response.status == 400
    assert path in [problem["path"] for problem in response.json()["data"]["errors"]]


@pytest.mark.parametrize("name", ["request", "response"])
def test_trial_names_a_body_that_nests_too_deep(team: Client, name: str):
    def nest(levels: int) -> dict[str, Any]:
        return json.loads('{"a":' * levels + "1" + "}" * levels)

    stage = {"stage": "output"} if name == "response" else {}
    answer = team.post("/v1/guardrails/test", {"checks": CHECKS, **stage, name: nest(127)})
    expect_error(answer, 400, "AB01", "at most 126 levels")
    assert [problem["path"] for problem in answer.json()["data"]["errors"]] == [name]
    assert team.post("/v1/guardrails/test", {"checks": CHECKS, **stage, name: nest(126)}).status == 200


def test_trial_needs_scopes(admin: Client, workspace: str, team: Client):
    guardrail = team.create("/v1/guardrails", {"name": "Scoped", "checks": CHECKS, "actions": {}})
    reader = admin.with_new_key(workspace_id=workspace, scopes=["guardrails.read"])
    assert try_saved(reader, guardrail["slug"], text="x")["verdict"]
    assert reader.post("/v1/guardrails/test", {"checks": CHECKS, "text": "x"}).status == 403
    other = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])
    assert other.post(f"/v1/guardrails/{guardrail['slug']}/test", {"text": "x"}).status == 403


def test_costly_patterns_do_not_delay_other_requests(team: Client):
    """This pattern takes quadratic time in the length of the text, without backtracking steps that could be counted."""
    hook = {"id": "slow", "deny": True, "default.regexMatch": {"rule": r"(?=(a+))\1+b"}}
    config = json.dumps({"provider": "mock", "input_guardrails": [hook]})
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(ask, team, "a" * 4_000, **{"x-gateway-config": config}) for _ in range(4)]
        responded = 0
        while not all(item.done() for item in slow):
            assert ask(team, "hello").status == 200
            responded += not any(item.done() for item in slow)
    assert {item.result().status for item in slow} == {446}
    # The other requests get responses while all texts with the costly pattern are still being checked.
    assert responded > 2


def test_edits_are_tried_with_stored_credentials(admin: Client, workspace: str, team: Client):
    with run_recording_hook() as (url, tokens):
        parameters = {"webhookURL": url, "headers": {"authorization": "a-token-0123456789"}, "timeout": 3000}
        created = team.create(
            "/v1/guardrails", {"name": "Hook", "checks": [{"id": "default.webhook", "parameters": parameters}]}
        )
        path = f"/v1/guardrails/{created['slug']}/test"
        checks = team.read(f"/v1/guardrails/{created['slug']}")["checks"]
        assert "0123456789" not in json.dumps(checks)
        checks[0]["parameters"]["timeout"] = 2000
        result = expect_ok(team.post(path, {"text": "x", "checks": checks}))
        assert result["results"][0]["checks"][0].get("error") is None
        assert tokens == ["a-token-0123456789"]
        assert team.read(f"/v1/guardrails/{created['slug']}")["checks"][0]["parameters"]["timeout"] == 3000

        # A stored credential is sent only where its owner chose to send it.
        checks[0]["parameters"]["webhookURL"] = url + "/elsewhere"
        moved = team.post(path, {"text": "x", "checks": checks})
        expect_error(moved, 400, "AB01", "checks[0].parameters.headers.authorization")
        reader = admin.with_new_key(workspace_id=workspace, scopes=["guardrails.read"])
        expect_ok(reader.post(path, {"text": "x"}))
        expect_error(reader.post(path, {"text": "x", "actions": {"deny": True}}), 403, "AB03", "guardrails.update")
        assert len(tokens) == 2


@contextmanager
def run_recording_hook(body: bytes = b'{"verdict": true}') -> Iterator[tuple[str, list[str]]]:
    """Runs a webhook or partner that accepts every text, and records the credentials that it gets."""
    tokens: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            tokens.append(self.headers["authorization"])
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/hook", tokens
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_credentials_of_the_organisation_reach_the_partner(admin: Client, team: Client):
    check = {"id": "mistral.moderateContent", "parameters": {"categories": ["pii"], "failOnError": True}}
    harmless = json.dumps({"results": [{"categories": {"pii": False}}]}).encode()
    with run_recording_hook(harmless) as (url, tokens):
        base = url.removesuffix("/hook")
        body = {"partner": "mistral", "credentials": {"apiKey": "a-key-of-all"}, "base_url": base}
        admin.create("/v1/partner-credentials", body)
        guardrail = team.create("/v1/guardrails", {"name": "Partner", "checks": [check], "actions": {"deny": True}})
        saved = team.read(f"/v1/guardrails/{guardrail['slug']}")
        assert "a-key-of-all" not in json.dumps(saved)
        config = {"x-gateway-config": json.dumps({"provider": "mock", "input_guardrails": [guardrail["slug"]]})}
        assert (ask(team, "hello", **config).status, tokens) == (200, ["Bearer a-key-of-all"])
        assert not try_saved(team, guardrail["slug"], text="hello")["denied"]
        assert not expect_ok(team.post("/v1/guardrails/test", {"checks": [check], "text": "hello"}))["denied"]
        assert tokens == ["Bearer a-key-of-all"] * 3
        changed = {"credentials": {"apiKey": "a-new-key"}}
        expect_ok(admin.put("/v1/partner-credentials/mistral", changed))
        assert (ask(team, "hello", **config).status, tokens[-1]) == (200, "Bearer a-new-key")
    # The partner is gone, and the check fails on errors.
    assert ask(team, "hello", **config).status == 446
    expect_error(admin.delete("/v1/partner-credentials/mistral"), 409, "AB07", guardrail["slug"])
    expect_ok(admin.delete(f"/v1/guardrails/{guardrail['slug']}"))
    expect_ok(admin.delete("/v1/partner-credentials/mistral"))


def test_references_show_what_uses_a_guardrail(admin: Client, workspace: str, team: Client):
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    shared = admin.create("/v1/guardrails", {"name": "Shared", "checks": CHECKS, "organisation_id": organisation})
    path = f"/v1/guardrails/{shared['slug']}/references"
    assert admin.read(path) == {"total": 0, "hidden": 0, "data": [], "object": "list"}
    config = {
        "strategy": {"mode": "fallback"},
        "output_guardrails": [shared["id"]],
        "targets": [{"provider": "mock"}, {"provider": "mock", "input_guardrails": [shared["slug"]]}],
    }
    here = admin.create("/v1/configs", {"name": "Here", "config": config, "workspace_id": workspace})
    other = admin.create("/v1/workspaces", {"name": "other"})["id"]
    # The slug in another field is no reference.
    unrelated = {"provider": "mock", "override_params": {"user": shared["slug"]}}
    admin.create("/v1/configs", {"name": "Not it", "config": unrelated, "workspace_id": workspace})
    elsewhere = admin.create("/v1/configs", {"name": "Elsewhere", "config": config, "workspace_id": other})
    set_defaults(admin, other, [shared["slug"]])

    page = admin.read(path)
    assert (page["total"], page["hidden"]) == (3, 0)
    assert [(entry["kind"], entry["name"], entry["workspace_id"]) for entry in page["data"]] == [
        ("workspace", "other", other),
        ("config", "Here", workspace),
        ("config", "Elsewhere", other),
    ]
    assert page["data"][0]["fields"] == ["defaults.input_guardrails"]
    assert page["data"][1]["fields"] == ["config.output_guardrails", "config.targets[1].input_guardrails"]
    assert page["data"][1]["slug"] == here["slug"]

    # A key of a workspace sees what its scopes show there, and how much else there is.
    reader = admin.with_new_key(workspace_id=workspace, scopes=["guardrails.read", "configs.read"])
    own = team.create("/v1/guardrails", {"name": "Own", "checks": CHECKS})
    config = {"provider": "mock", "input_guardrails": [own["slug"]]}
    user = admin.create("/v1/configs", {"name": "User", "config": config, "workspace_id": workspace})
    own_path = f"/v1/guardrails/{own['slug']}/references"
    assert [entry["slug"] for entry in reader.read(own_path)["data"]] == [user["slug"]]
    assert team.read(own_path) == {"total": 1, "hidden": 1, "data": [], "object": "list"}

    expect_error(admin.delete(f"/v1/guardrails/{shared['slug']}"), 409, "AB07", f"the config {elsewhere['slug']!r}")
    set_defaults(admin, other, [])
    for slug in (here["slug"], elsewhere["slug"]):
        expect_ok(admin.delete(f"/v1/configs/{slug}"))
    expect_ok(admin.delete(f"/v1/guardrails/{shared['slug']}"))


def test_references_show_what_uses_a_config(admin: Client, workspace: str):
    created = admin.create("/v1/configs", {"name": "Usual", "config": {"provider": "mock"}, "workspace_id": workspace})
    path = f"/v1/configs/{created['slug']}"
    assert admin.read(f"{path}/references")["total"] == 0
    body = {"name": "bot", "workspace_id": workspace, "scopes": SCOPES, "defaults": {"config_id": created["slug"]}}
    key = admin.create("/v1/api-keys/workspace/service", body)
    expect_ok(admin.put(f"/v1/workspaces/{workspace}", {"defaults": {"user_api_key_config": created["slug"]}}))
    references = admin.read(f"{path}/references")["data"]
    assert [(entry["kind"], entry["name"], entry["fields"]) for entry in references] == [
        ("workspace", "guarded", ["defaults.user_api_key_config"]),
        ("api_key", "bot", ["defaults.config_id"]),
    ]
    assert references[1]["id"] == key["id"]
    reader = admin.with_new_key(workspace_id=workspace, scopes=["configs.read"])
    assert reader.read(f"{path}/references") == {"total": 2, "hidden": 2, "data": [], "object": "list"}
    expect_error(admin.delete(path), 409, "AB07", "the key 'bot' as its default")
    expect_ok(admin.delete(f"/v1/api-keys/{key['id']}"))
    expect_ok(admin.put(f"/v1/workspaces/{workspace}", {"defaults": {"user_api_key_config": None}}))
    expect_ok(admin.delete(path))


def test_dry_run_of_a_saved_guardrail_is_in_the_log_as_feedback(admin: Client, workspace: str, team: Client):
    actions = {"deny": True, "dry_run": True, "stream": "window", "on_fail": {"feedback": {"value": -7.5, "weight": 1}}}
    created = team.create("/v1/guardrails", {"name": "Dry", "checks": CHECKS, "actions": actions})
    assert team.read(f"/v1/guardrails/{created['slug']}")["actions"]["stream"] == "window"
    set_defaults(admin, workspace, [created["slug"]])
    trace = "a-trace-of-a-dry-run"

    def find_feedback() -> dict[str, Any] | None:
        # A worker may not have the default yet.
        response = ask(team, "a canary", **{"x-gateway-trace-id": trace})
        assert (response.status, "hook_results" in response.json()) == (200, False)
        rows = team.read("/v1/logs?time_of_generation_min=2020-01-01T00:00:00Z&page_size=20")["data"]
        details = [team.read(f"/v1/logs/{row['id']}") for row in rows if row["trace_id"] == trace]
        # Feedback belongs to the trace, which several requests have.
        with_results = [entry for entry in details if entry["feedback"] and "hook_results" in entry["details"]]
        return next(iter(with_results), None)

    log = wait_for("the feedback", find_feedback)
    set_defaults(admin, workspace, [])
    (result,) = log["details"]["hook_results"]["before_request_hooks"]
    assert (result["dry_run"], result["would_deny"], result["deny"]) == (True, True, False)
    assert {entry["value"] for entry in log["feedback"]} == {-7.5}


def test_redacted_texts_are_in_no_log(admin: Client, workspace: str, team: Client, collector: OtelCollector):
    secret, trace = "heron@mail.example", "a-trace-of-a-redaction"
    excerpt = {"id": "default.regexMatch", "parameters": {"rule": "never", "not": True}}
    redaction = {"id": "gateway.pii", "parameters": {"categories": ["EMAIL_ADDRESS"], "redact": True}}
    created = team.create("/v1/guardrails", {"name": "Redact", "checks": [excerpt, redaction], "actions": {}})
    tailed = queue.SimpleQueue[bytes]()

    def follow() -> None:
        headers = {"x-gateway-api-key": team.key}
        with httpx2.stream("GET", f"{team.gateway.base_url}/v1/logs/tail", headers=headers, timeout=60) as response:
            for line in response.iter_lines():
                tailed.put(line.encode())
                if trace in line:
                    return

    follower = Thread(target=follow, daemon=True)
    follower.start()
    assert b"connected" in tailed.get(timeout=30)
    config = json.dumps({"provider": "mock", "input_guardrails": [created["slug"]], "output_guardrails": []})
    response = ask(team, f"write to {secret}", **{"x-gateway-config": config, "x-gateway-trace-id": trace})
    assert response.status == 200
    follower.join(30)

    def find_log() -> dict[str, Any] | None:
        rows = team.read("/v1/logs?time_of_generation_min=2020-01-01T00:00:00Z&page_size=20")["data"]
        ids = [row["id"] for row in rows if row["trace_id"] == trace]
        return team.read(f"/v1/logs/{ids[0]}") if ids else None

    log = wait_for("the log", find_log, 30)
    assert log["request"]["body"]["messages"][0]["content"] == "write to {{EMAIL_ADDRESS_1}}"
    exporting = admin.with_new_key(workspace_id=workspace, scopes=["logs.export", "logs.list", "logs.view"])
    requested = {"filters": {"trace_id": trace}, "requested_data": ["id", "trace_id", "request", "response"]}
    export = exporting.create("/v1/logs/exports", requested)
    expect_ok(exporting.post(f"/v1/logs/exports/{export['id']}/start", {}))

    def find_download() -> bytes | None:
        if exporting.read(f"/v1/logs/exports/{export['id']}")["status"] != "success":
            return None
        url = urlsplit(exporting.read(f"/v1/logs/exports/{export['id']}/download")["signed_url"])
        return httpx2.get(f"{team.gateway.base_url}{url.path}?{url.query}").content

    def find_spans() -> bytes | None:
        received = b"".join(collector.received)
        return received if b"EMAIL_ADDRESS_1" in received else None

    sinks = {
        "log": json.dumps(log).encode(),
        "export": wait_for("the export", find_download, 30),
        "spans": wait_for("the spans", find_spans, 30),
        "tail": b"".join(tailed.get() for _ in range(tailed.qsize())),
        "files": b"".join(path.read_bytes() for path in team.gateway.folder.rglob("*") if path.is_file()),
    }
    assert {name for name, text in sinks.items() if b"EMAIL_ADDRESS_1" not in text} <= {"tail"}
    assert {name for name, text in sinks.items() if b"heron" in text} == set()


@pytest.mark.parametrize("path", ["/v1//configs", "/v1/v1/configs", "/v1/%61pi-keys", "/v1/Configs", "/v1//files"])
def test_misspelled_paths_reach_no_provider(team: Client, provider: Mock, path: str):
    provider.clear_ledger()
    caller = Client(team.gateway, team.key, MOCK_HEADERS)
    assert caller.post(path, {"name": "x"}).status == 404
    assert provider.ledger() == []


@pytest.mark.parametrize("path", ["/v1/chat/complet%69ons", "/v1//chat/completions", "/v1/proxy/v1/chat/completions"])
def test_respelled_paths_are_checked(team: Client, provider: Mock, path: str):
    config = json.dumps(
        {
            "provider": "mock",
            "input_guardrails": [{"deny": True, "contains": {"words": ["canary"], "operator": "none"}}],
        }
    )
    provider.clear_ledger()
    caller = Client(team.gateway, team.key, {"x-gateway-config": config})
    body = {"model": "mock", "messages": [{"role": "user", "content": "a canary"}]}
    assert caller.post(path, body).status == 446
    assert provider.ledger() == []


def test_moderation_without_any_model_is_rejected(admin: Client, workspace: str):
    caller = admin.with_new_key(workspace_id=workspace, scopes=["guardrails.invoke", "completions.write"])
    response = caller.post("/v1/execute-guardrails/moderations", {"input": "x"})
    expect_error(response, 400, "AB01", "model", "guardrails.moderation_model")
