"""Limits of each kind of caller, object and request: tokens of an identity provider, WebSocket sessions, embeddings,
images, batches; and what happens when limits, keys and policies change.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.integration.batching import batch_line, create_batch, create_workspace, openai_client, to_jsonl
from tests.integration.batching import wait_until_ended as wait_until_batch_ended
from tests.integration.management_client import Client, expect_ok
from tests.integration.raw_http import CHAT_PATH, RawConnection, Response, encode_request, send_raw_request
from tests.integration.serving import read_metrics
from tests.integration.test_limits import (
    case_policy,
    create_policy,
    new_key,
    request_headers,
    send_chat,
    send_until_limited,
    wait_for_limit,
)
from tests.integration.test_realtime import REALTIME_PATH, open_session, receive_until, send_event
from tests.integration.test_sessions import MockIdentityProvider, TokenGateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from tests.gateway import Mock

ONE_STORE = True
ISSUER = MockIdentityProvider("")
ISSUER.add_key("one")
TABLES: dict[str, Any] = {
    "log_store": {"enabled": True},
    "metrics": {"enabled": True},
    "batches": {"interval_ms": 5},
    "jwt": {"enabled": True, "jwks": ISSUER.encode_jwks().decode()},
    "prices": [
        {
            "provider": "mock",
            "model": "mock",
            "pay_as_you_go": {"request_token": {"price": 0.0004}, "response_token": {"price": 0.0016}},
        }
    ],
}
pytestmark = pytest.mark.usefixtures("workspace", "sdk_client_cleanup")


@pytest.fixture(scope="module")
def workspace(admin: Client) -> Client:
    """Returns a client with a key of a workspace of its own."""
    return create_workspace(admin, "limited")


@pytest.fixture(scope="module")
def tokens(admin: Client, workspace: Client) -> TokenGateway:
    """Returns a signer of tokens for the workspace."""
    assert workspace
    rows = admin.read("/v1/workspaces?page_size=100")["data"]
    return TokenGateway(admin, ISSUER, next(row for row in rows if row["name"] == "limited"))


def find_key(admin: Client, name: str) -> dict[str, Any]:
    return next(row for row in admin.read("/v1/api-keys?page_size=100")["data"] if row["name"] == name)


def send_json(client: Client, path: str, body: object, **headers: str) -> Response:
    sent = request_headers(client, **headers)
    return send_raw_request(client.gateway.base_url, path, json.dumps(body).encode(), sent)


def test_limits_in_tokens_are_those_of_their_user(tokens: TokenGateway):
    budget: Any = {"usage_limits": {"type": "requests", "credit_limit": 2}}
    ann = [tokens.sign_token(sub="ann", **budget) for _ in range(2)]
    statuses = [tokens.send_chat(ann[number % 2]).status for number in range(4)]
    assert statuses == [200, 200, 412, 412]
    refused = tokens.send_chat(ann[0])
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("04", "ann")
    assert "usage limit of token of `ann` reached: 2 requests" in error["message"]
    assert tokens.send_chat(tokens.sign_token(sub="bob", **budget)).status == 200
    rate: Any = {"rate_limits": [{"type": "requests", "unit": "rpd", "value": 1}]}
    first, second = (tokens.send_chat(tokens.sign_token(sub="eve", **rate)) for _ in range(2))
    assert (first.status, second.status, second.json()["error"]["param"]) == (200, 429, "eve")
    for response in (first, second):
        assert response.get_header("ratelimit-policy") == '"token-of-eve-requests";q=1;w=86400'
    # A claim with invalid limits is not ignored: it makes the token invalid.
    assert tokens.send_chat(tokens.sign_token(usage_limits={"credit_limit": "much"})).status == 401


def test_budgets_of_tokens_are_listed_reset_and_send_alerts(admin: Client, tokens: TokenGateway):
    budget: Any = {"usage_limits": {"type": "requests", "credit_limit": 2, "alert_threshold": 1}}
    rate: Any = {"rate_limits": [{"type": "requests", "unit": "rpd", "value": 50}]}
    token = tokens.sign_token(sub="zoe", **budget, **rate)

    def find_usage(used: int) -> dict[str, Any] | None:
        rows = admin.read("/v1/limits/usage?page_size=1000")["data"]
        return next((row for row in rows if row["owner_name"] == "zoe" and row["current_usage"] == used), None)

    def wait_for_alert(action: str) -> None:
        of_organisation = f"organisation_id={tokens.workspace['organisation_id']}&resource_type=token_limits"
        span = "start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z"
        path = f"/v1/audit-logs?{span}&{of_organisation}&action={action}"
        wait_for(f"the audit row {action}", lambda: admin.read(path)["records"] or None)

    assert tokens.send_chat(token).status == 200
    wait_for_alert("alert")
    assert [tokens.send_chat(token).status for _ in range(2)] == [200, 412]
    row = wait_for("the usage", lambda: find_usage(2))
    assert (row["kind"], row["credit_limit"], row["alert_threshold"]) == ("token", 2, 1)
    wait_for_alert("exhaust")

    def find_rate() -> dict[str, Any] | None:
        rows = admin.read("/v1/limits/rates")["data"]
        return next((row for row in rows if (row["kind"], row["owner_name"]) == ("token", "zoe")), None)

    assert wait_for("the rate", find_rate)["value"] == 50
    shown = send_raw_request(
        admin.gateway.base_url,
        "/v1/explain",
        json.dumps({"path": CHAT_PATH, "headers": {"x-gateway-provider": "mock"}, "body": {"model": "mock"}}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token}"},
    )
    limits = {(limit["kind"], limit["window"]): limit["remaining"] for limit in shown.json()["targets"][0]["limits"]}
    assert limits["token", "period"] == 0
    expect_ok(admin.put(f"/v1/limits/tokens/{row['owner_id']}/reset", {}))
    wait_for("the reset", lambda: tokens.send_chat(token).status == 200 or None)


def test_limits_of_policies_and_the_workspace_apply_to_tokens(admin: Client, tokens: TokenGateway):
    condition = {"key": "metadata.case", "value": "of tokens"}
    create_policy(
        admin, "rate", conditions=[condition], group_by=[{"key": "workspace_id"}], type="requests", unit="rpw", value=4
    )
    claims: Any = {"defaults": {"metadata": {"case": "of tokens"}}}
    token = tokens.sign_token(sub="kim", **claims)
    wait_for("the policy", lambda: tokens.send_chat(token).get_header("ratelimit"))
    statuses = [tokens.send_chat(tokens.sign_token(sub=f"user {number}", **claims)).status for number in range(5)]
    assert statuses[-1] == 429
    assert statuses.count(200) <= 3
    response = tokens.send_chat(token)
    assert "per week" in response.json()["error"]["message"]
    assert (response.get_header("ratelimit-policy") or "").endswith(";w=604800")


def test_session_over_a_websocket_ends_when_its_budget_is_used_up(admin: Client):
    # Each response of the mock provider uses 20 tokens.
    client = new_key(admin, name="talks", usage_limits={"type": "tokens", "credit_limit": 50})
    headers = {"x-gateway-api-key": client.key, "x-gateway-provider": "mock"}
    with open_session(client.gateway, headers=headers) as socket:
        for _ in range(3):
            send_event(socket, type="response.create")
            receive_until(socket, "response.done")
        (error,) = receive_until(socket, "error")[-1:]
        assert (error["error"]["code"], error["error"]["message"].count("API key `talks`")) == ("04", 1)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert closed.value.rcvd
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the budget of this session is used up")

    def find_record() -> dict[str, Any] | None:
        records = [record for record in client.gateway.records() if record["api_key_name"] == "talks"]
        return next((record for record in records if record.get("total_units")), None)

    record = wait_for("the record", find_record)
    assert (record["total_units"], record["error"]) == (60, "04")
    key_id = find_key(admin, "talks")["id"]
    wait_for("the ledger", lambda: admin.read(f"/v1/api-keys/{key_id}")["current_usage"] == 60 or None, 10)
    with pytest.raises(InvalidStatus) as refused, open_session(client.gateway, headers=headers):
        pass
    assert refused.value.response.status_code == 412
    assert refused.value.response.headers["ratelimit"].startswith('"api-key-talks-tokens";r=0')


def test_sessions_count_for_rate_limits_and_not_for_hard_budgets(admin: Client, workspace: Client):
    client = new_key(admin, name="speaks", rate_limits=[{"type": "requests", "unit": "rpd", "value": 2}])
    headers = {"x-gateway-api-key": client.key, "x-gateway-provider": "mock"}
    for _ in range(2):
        open_session(client.gateway, headers=headers).close()
    with pytest.raises(InvalidStatus) as refused, open_session(client.gateway, headers=headers):
        pass
    response = refused.value.response
    assert (response.status_code, int(response.headers["retry-after"]) > 0) == (429, True)
    assert response.headers["x-gateway-ratelimit-remaining-requests"] == "0"
    create_policy(admin, "usage", **case_policy("talk"), type="cost", credit_limit=5, enforcement="hard")
    metadata = {"x_gateway_metadata": json.dumps({"case": "talk", "user": "u"})}
    wait_for_limit(workspace, **metadata)
    headers = {name: value for name, value in request_headers(workspace, **metadata).items() if name != "content-type"}
    with pytest.raises(InvalidStatus) as unbounded, open_session(workspace.gateway, REALTIME_PATH, headers):
        pass
    assert unbounded.value.response.status_code == 412
    assert b"usage_not_bounded" in (unbounded.value.response.body or b"")


def test_embeddings_and_images_use_budgets_of_tokens(admin: Client):
    client = new_key(admin, name="draws", usage_limits={"type": "tokens", "credit_limit": 1000})
    used = 0
    for path, body in (
        ("/v1/embeddings", {"model": "mock", "input": ["a", "b"]}),
        ("/v1/images/generations", {"model": "mock", "prompt": "x", "n": 2}),
        ("/v1/responses", {"model": "mock", "input": "x", "max_output_tokens": 5}),
        ("/v1/messages", {"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/chat/completions", {"model": "mock", "n": 2, "messages": [{"role": "user", "content": "x"}]}),
    ):
        response = send_json(client, path, body)
        assert response.status == 200, (path, response.body)
        usage = response.json()["usage"]
        used += usage.get("total_tokens") or usage["input_tokens"] + usage["output_tokens"]
        left = int(response.get_header("x-gateway-ratelimit-remaining-tokens") or -1)
        assert 0 < left < 1000
    key_id = find_key(admin, "draws")["id"]

    def read_usage() -> float | None:
        recorded = admin.read(f"/v1/api-keys/{key_id}")["current_usage"]
        return recorded if recorded >= used else None

    assert wait_for("the ledger", read_usage, 10) == used


def test_lines_of_a_batch_are_admitted_one_by_one(admin: Client, provider: Mock):
    client = new_key(admin, name="batches", usage_limits={"type": "requests", "credit_limit": 3})
    ai = openai_client(client, provider="mock")
    before = len(provider.ledger())
    batch = create_batch(ai, to_jsonl(*(batch_line(number) for number in range(8))))
    counts = wait_until_batch_ended(ai, batch.id).request_counts
    assert (counts.completed, counts.failed) == (3, 5)
    assert len(provider.ledger()) - before == 3


def test_limits_of_workspaces_and_integrations_apply(admin: Client):
    caller = create_workspace(admin, "embedded")
    place = next(row for row in admin.read("/v1/workspaces?page_size=100")["data"] if row["name"] == "embedded")
    expect_ok(
        admin.put(f"/v1/workspaces/{place['id']}", {"rate_limits": [{"type": "requests", "unit": "rpd", "value": 3}]})
    )
    wait_for_limit(caller)
    other = admin.with_new_key(workspace_id=place["id"], scopes=["completions.write"])
    wait_for("the other key", lambda: send_chat(other).status in {200, 429} or None)
    count, refused = send_until_limited(other)
    assert count < 3
    assert (refused.status, refused.json()["error"]["param"]) == (429, place["slug"])
    assert f"rate limit of workspace `{place['slug']}`" in refused.json()["error"]["message"]
    assert send_chat(caller).status == 429


def test_policy_excludes_values_and_counts_weeks(admin: Client, workspace: Client):
    conditions = [
        {"key": "metadata.case", "value": "excluded"},
        {"key": "metadata.plan", "value": ["gold", "silver*"], "excludes": True},
    ]
    create_policy(
        admin, "rate", conditions=conditions, group_by=[{"key": "metadata.plan"}], type="requests", unit="rpw", value=1
    )

    def send(plan: str) -> Response:
        return send_chat(workspace, x_gateway_metadata=json.dumps({"case": "excluded", "plan": plan}))

    wait_for("the policy", lambda: send("first").get_header("ratelimit"))
    assert [send("basic").status for _ in range(2)] == [200, 429]
    for plan in ("gold", "silver-2"):
        responses = [send(plan) for _ in range(2)]
        assert [(response.status, response.get_header("ratelimit")) for response in responses] == [(200, None)] * 2


def test_raised_budget_and_rotated_key_keep_the_usage(admin: Client):
    client = new_key(admin, name="raised", usage_limits={"type": "requests", "credit_limit": 2})
    assert send_until_limited(client)[0] == 2
    key_id = find_key(admin, "raised")["id"]
    rotated = expect_ok(admin.post(f"/v1/api-keys/{key_id}/rotate", {}))["key"]
    again = Client(client.gateway, rotated)
    wait_for("the new secret", lambda: send_chat(again).status != 401 or None)
    assert send_chat(again).status == 412
    expect_ok(admin.put(f"/v1/api-keys/{key_id}", {"usage_limits": {"type": "requests", "credit_limit": 5}}))
    wait_for("the raise", lambda: send_chat(again).status == 200 or None, 10)
    count, _ = send_until_limited(again)
    assert count == 2


def test_changes_of_a_policy_do_not_lose_requests_in_progress(admin: Client, workspace: Client):
    fields = {**case_policy("changing"), "type": "requests", "credit_limit": 10}
    policy = create_policy(admin, "usage", **fields)
    metadata = json.dumps({"case": "changing", "user": "u"})
    wait_for_limit(workspace, x_gateway_metadata=json.dumps({"case": "changing", "user": "first"}))
    body = {"model": "mock?first_ms=600", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    headers = request_headers(workspace, x_gateway_metadata=metadata)
    with RawConnection(admin.gateway.base_url) as connection:
        connection.send(encode_request("POST", CHAT_PATH, headers, json.dumps(body).encode()))
        expect_ok(admin.put(f"/v1/policies/usage-limits/{policy}", {"credit_limit": 2}))
        assert connection.read_response().status == 200
    count, refused = send_until_limited(workspace, x_gateway_metadata=metadata)
    assert count <= 1
    assert "2 requests" in refused.json()["error"]["message"]
    expect_ok(admin.delete(f"/v1/policies/usage-limits/{policy}"))
    wait_for("its end", lambda: send_chat(workspace, x_gateway_metadata=metadata).status == 200 or None, 10)


def test_concurrent_resets_admit_no_more_than_the_limit_each_time(admin: Client):
    client = new_key(admin, name="reset often", usage_limits={"type": "requests", "credit_limit": 10})
    key_id = find_key(admin, "reset often")["id"]
    resets = 4
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(lambda: [send_chat(client).status for _ in range(25)]) for _ in range(7)]
        for _ in range(resets):
            expect_ok(admin.put(f"/v1/api-keys/{key_id}", {"reset_usage": True}))
        statuses = [status for call in running for status in call.result(60)]
    assert set(statuses) <= {200, 412}
    assert 10 <= statuses.count(200) <= 10 * (resets + 1)


def test_sdk_waits_for_the_next_window(admin: Client, provider: Mock):
    client = new_key(admin, name="waits", rate_limits=[{"type": "requests", "unit": "rps", "value": 1}])
    before = len(provider.ledger())
    with openai.OpenAI(
        api_key=client.key, base_url=f"{client.gateway.base_url}/v1", default_headers={"x-gateway-provider": "mock"}
    ) as sdk:
        messages: Any = [{"role": "user", "content": "hello"}]
        for _ in range(3):
            sdk.chat.completions.create(model="mock", messages=messages)
    # Each call reached the provider once, although two of them were rejected at first.
    assert len(provider.ledger()) - before == 3


def test_metrics_count_rejections(admin: Client):
    name = "penstock_limit_rejections_total"
    client = new_key(admin, name="counted", rate_limits=[{"type": "requests", "unit": "rpd", "value": 0}])
    before = sum(value for key, value in read_metrics(admin.gateway).items() if key.startswith(name))
    assert send_chat(client).status == 429

    def has_grown() -> bool | None:
        values = read_metrics(admin.gateway)
        return sum(value for key, value in values.items() if key.startswith(name)) > before or None

    wait_for("the metric", has_grown, 10)
