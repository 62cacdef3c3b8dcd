"""Guardrail trials and moderations that ask a model, and the classification of texts without a guardrail."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.management_client import Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory

ONE_STORE = True
SCOPES = ["completions.write", "guardrails.create", "guardrails.update", "guardrails.read", "guardrails.invoke"]
JUDGE: dict[str, Any] = {"id": "gateway.promptInjection", "parameters": {"model": "@judge/m"}}
EXECUTE = "/v1/execute-guardrails"


class JudgeServer(ThreadingHTTPServer):
    """Provider whose model acts as a judge. It rejects texts that contain `bad`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), JudgeHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.questions: list[dict[str, Any]] = []
        self.status = 200


class JudgeHandler(BaseHTTPRequestHandler):
    server: JudgeServer  # type: ignore[assignment]

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.questions.append(question)
        is_bad = "bad" in question["messages"][-1]["content"]
        decision = {"injection": is_bad, "categories": ["violence"] if is_bad else []}
        message = {"role": "assistant", "content": json.dumps(decision)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
        written = json.dumps(body).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        """Writes no access log."""


@contextmanager
def run_judge() -> Iterator[JudgeServer]:
    with JudgeServer() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeServer]:
    with run_judge() as server:
        yield server


@pytest.fixture(scope="module")
def running_gateway(
    provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("guardrail-models")
    tables: dict[str, Any] = {"mock": {"host": provider.url}, "upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
    tables["guardrails"] = {"moderation_model": "@judge/default"}
    with run_gateway(folder, tables, env=new_store(folder)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def admin(running_gateway: Gateway) -> Client:
    return Client(running_gateway)


@pytest.fixture(scope="module")
def workspace(admin: Client, judge: JudgeServer) -> str:
    workspace_id = admin.create("/v1/workspaces", {"name": "judged"})["id"]
    integration = {"name": "judge", "ai_provider_id": "openai", "key": "sk-judge", "workspace_id": workspace_id}
    slugs = {"slug": "judge", "default_provider_slug": "judge"}
    admin.create("/v1/integrations", {**integration, **slugs, "configurations": {"custom_host": judge.url}})
    return workspace_id


@pytest.fixture(scope="module")
def team(admin: Client, workspace: str) -> Client:
    client = admin.with_new_key(workspace_id=workspace, scopes=SCOPES)
    wait_until_known(client, judged=True)
    return client


def wait_until_known(client: Client, *, judged: bool = False) -> None:
    """Waits until the edge knows the key, and the provider of the judge if it is in the workspace."""
    headers = {"x-gateway-provider": "@judge"} if judged else MOCK_HEADERS
    caller = Client(client.gateway, client.key, headers)
    body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
    wait_for("the key at the edge", lambda: caller.post(CHAT_PATH, body).status == 200 or None, 5)


def test_trial_asks_the_model_of_the_workspace(team: Client, judge: JudgeServer):
    guardrail = team.create("/v1/guardrails", {"name": "Judged", "checks": [JUDGE], "actions": {"deny": True}})
    path = f"/v1/guardrails/{guardrail['slug']}/test"
    for text, is_denied in (("a bad text", True), ("a good text", False)):
        judge.questions.clear()
        actual = expect_ok(team.post(path, {"text": text}))
        assert (actual["denied"], actual["verdict"]) == (is_denied, not is_denied)
        assert (actual["texts"], actual["object"]) == ([text], "guardrail_trial")
        assert actual["results"][0]["id"] == guardrail["slug"]
        assert [question["model"] for question in judge.questions] == ["m"]
    unsaved = expect_ok(team.post("/v1/guardrails/test", {"checks": [JUDGE], "text": "a bad text"}))
    assert not unsaved["verdict"]


def test_trial_of_an_admin_names_the_workspace(admin: Client, workspace: str, team: Client):
    assert team.key
    body = {"checks": [JUDGE], "text": "a bad text"}
    expect_error(admin.post("/v1/guardrails/test", body), 400, "AB01", "workspace_id")
    actual = expect_ok(admin.post(f"/v1/guardrails/test?workspace_id={workspace}", body))
    assert not actual["verdict"]


def test_model_trial_needs_the_scope_to_update(admin: Client, workspace: str, team: Client, judge: JudgeServer):
    guardrail = team.create("/v1/guardrails", {"name": "Costly", "checks": [JUDGE]})
    reader = admin.with_new_key(workspace_id=workspace, scopes=["guardrails.read"])
    judge.questions.clear()
    response = reader.post(f"/v1/guardrails/{guardrail['slug']}/test", {"text": "x"})
    expect_error(response, 403, "AB03", "guardrails.update")
    assert not judge.questions


def test_unreachable_model_is_an_error_of_the_check(team: Client):
    check = {**JUDGE, "parameters": {"model": "@none/m"}}
    actual = expect_ok(team.post("/v1/guardrails/test", {"checks": [check], "text": "x"}))
    assert "could not be called" in actual["results"][0]["checks"][0]["error"]["message"]


def test_no_client_can_read_a_plan(team: Client):
    assert team.post("/internal/trial-plans/x", {}).status in {403, 404}


def test_moderations_have_the_categories_of_each_text(team: Client, judge: JudgeServer):
    judge.questions.clear()
    body = {"input": ["a bad text", "a good text"], "model": "@judge/m", "categories": ["violence", "hate"]}
    actual = expect_ok(team.post(f"{EXECUTE}/moderations", body))
    assert actual["results"] == [
        {"flagged": True, "categories": {"violence": True, "hate": False}},
        {"flagged": False, "categories": {"violence": False, "hate": False}},
    ]
    assert len(judge.questions) == 2
    moderation = expect_ok(team.post(f"{EXECUTE}/moderations", {"input": "a bad text", "model": "@judge/m"}))
    assert (len(moderation["results"]), len(moderation["results"][0]["categories"])) == (1, 11)
    missing = team.post(f"{EXECUTE}/moderations", {"input": "x", "model": "@none/m"})
    expect_error(missing, 400, "AB01", "@none/m could not be called")


def test_check_without_a_model_asks_the_default_model(team: Client, judge: JudgeServer):
    judge.questions.clear()
    check = {"id": "gateway.moderateContent", "parameters": {"categories": ["violence"]}}
    guardrail = team.create("/v1/guardrails", {"name": "Default", "checks": [check], "actions": {"deny": True}})
    trial = expect_ok(team.post(f"/v1/guardrails/{guardrail['slug']}/test", {"text": "a bad text"}))
    assert (trial["denied"], trial["verdict"]) == (True, False)
    moderation = expect_ok(team.post(f"{EXECUTE}/moderations", {"input": "a bad text", "categories": ["violence"]}))
    assert moderation["results"][0]["flagged"]
    assert {question["model"] for question in judge.questions} == {"default"}


def test_check_without_any_model_is_rejected_when_it_is_saved(team: Client):
    check = {"id": "gateway.pii", "parameters": {"categories": ["NAME"]}}
    response = team.post("/v1/guardrails", {"name": "Names", "checks": [check]})
    expect_error(response, 400, "AB01", "checks[0].parameters.model", "guardrails.pii_model")


def test_texts_are_classified(team: Client):
    german = "Der schnelle braune Fuchs springt über den faulen Hund und läuft dann weiter."
    languages = team.post(f"{EXECUTE}/language", {"input": [german, "12"]}).json()
    assert (languages[0][0]["label"], languages[1]) == ("deu_Latn", [])
    assert 0.5 < languages[0][0]["score"] <= 1
    noise = team.post(f"{EXECUTE}/gibberish", {"input": [german, "xqzvjkpwgh fghjkdfgqw zxcvbqwrtp"]}).json()
    assert noise == [[{"label": "clean"}], [{"label": "gibberish"}]]
    embeddings = team.post(
        f"{EXECUTE}/pii", {"input": "ann@example.com at 10.0.0.1", "categories": ["EMAIL_ADDRESS"]}
    ).json()
    assert embeddings == [
        {
            "entities": [{"text": "ann@example.com", "labels": {"EMAIL_ADDRESS": 1.0}}],
            "processed_text": "{{EMAIL_ADDRESS_1}} at 10.0.0.1",
        }
    ]
    assert len(team.post(f"{EXECUTE}/pii", {"input": "ann@example.com at 10.0.0.1"}).json()[0]["entities"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("language", {}, "input"),
        ("language", {"input": []}, "input"),
        ("language", {"input": "x", "model": "m"}, "model"),
        ("gibberish", {"input": ["x" * 600_000, "y" * 600_000]}, "input"),
        ("pii", {"input": "x", "categories": ["NAME"]}, "categories[0]"),
        ("moderations", {"input": "x", "model": "gpt-4o"}, "model"),
        ("moderations", {"input": ["x"] * 33, "model": "@judge/m"}, "input"),
    ],
)
def test_invalid_classification_names_the_field(team: Client, path: str, body: dict[str, Any], field: str):
    response = team.post(f"{EXECUTE}/{path}", body)
    assert response.status == 400, response.body
    assert field in [problem["path"] for problem in response.json()["data"]["errors"]]


def test_classification_needs_scopes(admin: Client, workspace: str):
    caller = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"])
    expect_error(caller.post(f"{EXECUTE}/language", {"input": "x"}), 403, "AB03", "guardrails.invoke")
    invoker = admin.with_new_key(workspace_id=workspace, scopes=["guardrails.invoke"])
    assert invoker.post(f"{EXECUTE}/language", {"input": "x"}).status == 200
    moderation = {"input": "x", "model": "@judge/m"}
    expect_error(invoker.post(f"{EXECUTE}/moderations", moderation), 403, "AB03", "completions.write")
    assert Client(admin.gateway, "").post(f"{EXECUTE}/pii", {"input": "x"}).status == 401


def test_caller_at_its_own_limits_does_not_get_past_a_model_check(admin: Client, workspace: str, team: Client):
    guardrail = team.create("/v1/guardrails", {"name": "Deny", "checks": [JUDGE], "actions": {"deny": True}})
    config = {"x-gateway-config": json.dumps({"provider": "mock", "input_guardrails": [guardrail["slug"]]})}
    body = {"model": "mock", "messages": [{"role": "user", "content": "a bad text"}]}
    rates = [{"type": "requests", "unit": "rph", "value": 2}]
    limited = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"], rate_limits=rates)
    caller = Client(limited.gateway, limited.key, config)
    wait_for("the key", lambda: caller.post(CHAT_PATH, body).status != 401 or None, 5)
    # Questions to the judge do not count as requests of the caller, so both of its requests are checked.
    assert [caller.post(CHAT_PATH, body).status for _ in range(2)] == [446, 429]
    tokens = [{"type": "tokens", "unit": "rph", "value": 1}]
    poor = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"], rate_limits=tokens)
    caller = Client(poor.gateway, poor.key, config)
    wait_for("the key", lambda: caller.post(CHAT_PATH, body).status != 401 or None, 5)
    for text in ("a bad text", "a good text"):
        response = caller.post(CHAT_PATH, {**body, "messages": [{"role": "user", "content": text}]})
        assert response.status == 446, response.body
        check = response.json()["hook_results"]["before_request_hooks"][0]["checks"][0]
        assert check["error"]["name"] == "Limit reached"
