"""Checks of plug-ins under the real supervisor: the example of the documentation, and plug-ins that misbehave."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.doc_examples import page_examples
from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, Response
from tests.integration.serving import run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Gateway, Mock
    from tests.integration.conftest import StoreFactory

ONE_STORE = True
PAGE = "docs/guardrail-plugins.md"
# Long enough for a busy machine; only the checks that hang have less.
LIMIT_MS = 20_000
BAD_PLUGIN = """
import os
import re
import time

from penstock.plugins import Call, Result, check


@check(description="never ends")
def hang(call: Call) -> bool:
    time.sleep(1000)


@check(description="holds the lock of the interpreter")
def hold(call: Call) -> bool:
    return re.match(r"(a+)+$", "a" * 60 + "b") is None


@check(description="ends the process")
def leave(call: Call) -> bool:
    os._exit(3)


@check(description="is killed")
def crash(call: Call) -> bool:
    os.kill(os.getpid(), 11)


@check(description="raises an exception with a text of the request")
def fail(call: Call) -> bool:
    raise ValueError(call.texts[0])


@check(description="returns something else")
def garbage(call: Call) -> bool:
    return "yes"


@check(description="returns a result of wrong types")
def typed(call: Call) -> Result:
    return Result("no", data=[1])


@check(description="changes texts without permission")
def unpermitted(call: Call) -> Result:
    return Result(True, texts=["x"])


@check(description="drops a text", changes=True)
def dropped(call: Call) -> Result:
    return Result(True, texts=[])


@check(description="takes all memory")
def eat(call: Call) -> bool:
    return len(b"x" * (4 << 30)) == 0


@check(description="shows the environment")
def environment(call: Call) -> Result:
    return Result(True, data={"names": sorted(os.environ), "descriptors": len(os.listdir("/proc/self/fd"))})


@check(description="fails", stages=("output",))
def refuse(call: Call) -> bool:
    return not call.texts


@check(description="passes")
def good(call: Call) -> bool:
    return True
"""


@pytest.fixture(scope="module")
def running_gateway(
    provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("plugins")
    plugins = folder / "plugins"
    plugins.mkdir(mode=0o755)
    (example,) = page_examples(PAGE, "python")
    (plugins / "acme.py").write_text(example.text)
    (plugins / "bad.py").write_text(BAD_PLUGIN)
    (plugins / "_part.py").write_text("raise ValueError('a part is not loaded')")
    tables: dict[str, Any] = {"mock": {"host": provider.url}, "log_store": {"enabled": True}}
    tables["guardrail_plugins"] = {"paths": [str(plugins)], "memory_bytes": 512 * 1024 * 1024}
    environment = {**new_store(folder), "SECRET_OF_THE_GATEWAY": "s"}
    with run_gateway(folder, tables, env=environment) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def admin(running_gateway: Gateway) -> Client:
    return Client(running_gateway)


@pytest.fixture(scope="module")
def team(admin: Client) -> Client:
    workspace = admin.create("/v1/workspaces", {"name": "plugged"})["id"]
    scopes = ["completions.write", "guardrails.create", "guardrails.read", "guardrails.update"]
    key = admin.create("/v1/api-keys/workspace/service", {"name": "k", "workspace_id": workspace, "scopes": scopes})
    return Client(admin.gateway, key["key"])


def ask(client: Client, text: str, checks: dict[str, Any], side: str = "input") -> Response:
    config = json.dumps({"provider": "mock", f"{side}_guardrails": [{"deny": True, **checks}]})
    caller = Client(client.gateway, client.key, {**MOCK_HEADERS, "x-gateway-config": config})
    return caller.post(CHAT_PATH, {"model": "mock", "messages": [{"role": "user", "content": text}]})


def run_bad(team: Client, name: str, *, timeout: int = LIMIT_MS) -> dict[str, Any]:
    """Runs a check that has an error, which denies nothing by default. Returns its result."""
    response = ask(team, "a canary", {f"bad.{name}": {"timeout": timeout}})
    assert response.status == 200, response.body
    (result,) = response.json()["hook_results"]["before_request_hooks"]
    (check,) = result["checks"]
    assert "canary" not in json.dumps(check)
    return check


def wait_until_good(team: Client) -> None:
    def passes() -> bool | None:
        response = ask(team, "hi", {"bad.good": {"timeout": LIMIT_MS, "failOnError": True}})
        return response.status == 200 or None

    wait_for("a plug-in that responds", passes, 60)


def plugin_pid(gateway: Gateway) -> int | None:
    return next((pid for pid, line in gateway.pids().items() if "plug-ins" in line), None)


def test_example_of_the_documentation_denies_and_replaces(team: Client, provider: Mock):
    limits = {"timeout": LIMIT_MS, "failOnError": True}
    denied = ask(team, "see ACME-42", {"acme.no_tickets": limits})
    (result,) = denied.json()["hook_results"]["before_request_hooks"]
    assert denied.status == 446
    assert (result["checks"][0]["id"], result["checks"][0]["data"]) == (
        "acme.no_tickets",
        {"found": 1, "verdict": False},
    )
    assert ask(team, "nothing", {"acme.no_tickets": limits}).status == 200
    redacted = ask(team, "see ACME-42", {"acme.no_tickets": {**limits, "redact": True}})
    assert redacted.status == 200
    (result,) = redacted.json()["hook_results"]["before_request_hooks"]
    assert (result["verdict"], result["transformed"]) == (True, True)
    # The provider received the redacted text: its body differs in size from the previous one, whose text is `nothing`.
    sent, original = [entry["body_bytes"] for entry in provider.ledger()[-1:-3:-1]]
    assert sent - original == len("see a ticket") - len("nothing")
    assert ask(team, "see T-42", {"acme.no_tickets": {**limits, "prefix": "T-"}}).status == 446
    assert ask(team, "hi", {"acme.has_project": limits}).status == 446
    assert ask(team, "hi", {"bad.refuse": limits}, "output").status == 446


def test_catalogue_lists_checks_of_plugins(admin: Client, team: Client):
    rows = {row["id"]: row for row in admin.read("/v1/guardrails/checks")["data"]}
    row = rows["acme.no_tickets"]
    assert (row["name"], row["hooks"]) == ("No tickets", ["input", "output"])
    assert row["parameters"]["properties"]["prefix"]["description"] == "letters before the number"
    assert {"scope", "timeout", "failOnError"} < row["parameters"]["properties"].keys()
    assert rows["acme.has_project"]["hooks"] == ["input"]
    body = {"name": "Tickets", "checks": [{"id": "acme.no_tickets", "parameters": {"prefix": ""}}]}
    refused = team.post("/v1/guardrails", body)
    assert refused.status == 400
    assert "checks[0].parameters.prefix" in json.dumps(refused.json())
    body["checks"] = [{"id": "acme.no_tickets", "parameters": {"timeout": LIMIT_MS}}]
    saved = team.create("/v1/guardrails", {**body, "actions": {"deny": True}})
    tried = expect_ok(team.post(f"/v1/guardrails/{saved['slug']}/test", {"text": "see ACME-7"}))
    assert (tried["verdict"], tried["denied"]) == (False, True)
    redacting = [{"id": "acme.no_tickets", "parameters": {"timeout": LIMIT_MS, "redact": True}}]
    trial = expect_ok(team.post("/v1/guardrails/test", {"checks": redacting, "text": "see ACME-42"}))
    assert (trial["texts"], trial["transformed"]) == (["see a ticket"], True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fail", "raised ValueError"),
        ("garbage", "returned str"),
        ("typed", "raised ValidationError"),
        ("unpermitted", "without `changes=True`"),
        ("dropped", "returned 0 texts in place of 1"),
        ("eat", "raised MemoryError"),
    ],
)
def test_failing_plugin_has_an_error(team: Client, name: str, message: str):
    check = run_bad(team, name)
    assert message in check["error"]["message"]
    assert ask(team, "hi", {f"bad.{name}": {"timeout": LIMIT_MS, "failOnError": True}}).status == 446


@pytest.mark.parametrize("name", ["leave", "crash"])
def test_ended_process_is_restarted(team: Client, name: str):
    wait_until_good(team)
    assert "closed the connection" in run_bad(team, name)["error"]["message"]
    wait_until_good(team)


@pytest.mark.parametrize("name", ["hang", "hold"])
def test_call_that_never_ends_ends_the_process(team: Client, name: str):
    wait_until_good(team)
    before = plugin_pid(team.gateway)
    assert "took longer than 100 ms" in run_bad(team, name, timeout=100)["error"]["message"]
    wait_for("another process of plug-ins", lambda: plugin_pid(team.gateway) not in {before, None} or None, 60)
    wait_until_good(team)


def test_hanging_plugin_is_not_called_for_a_while(team: Client):
    wait_until_good(team)
    messages = [run_bad(team, "hang", timeout=51)["error"]["message"] for _ in range(6)]
    assert all("took longer" in message for message in messages[:5]), messages
    assert "it is not called for a while" in messages[5]
    denied = ask(team, "hi", {"bad.hang": {"timeout": 51, "failOnError": True}})
    assert denied.status == 446
    wait_until_good(team)


def test_plugin_gets_nothing_of_the_gateway(team: Client):
    wait_until_good(team)
    response = ask(team, "hi", {"bad.environment": {"timeout": LIMIT_MS, "failOnError": True}})
    data = response.json()["hook_results"]["before_request_hooks"][0]["checks"][0]["data"]
    assert set(data["names"]) <= {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ"}
    pid = plugin_pid(team.gateway)
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) > 0


def test_killed_process_is_restarted(team: Client):
    wait_until_good(team)
    pid = plugin_pid(team.gateway)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for("another process of plug-ins", lambda: plugin_pid(team.gateway) not in {pid, None} or None, 60)
    wait_until_good(team)
