"""Rate limits and budgets, from the management API to the data plane and the ledger."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

from tests.integration.batching import create_workspace
from tests.integration.management_client import ADMIN_KEY, Client, expect_error, expect_ok
from tests.integration.raw_http import CHAT_PATH, RawConnection, Response, encode_request, send_raw_request
from tests.integration.serving import edge_pids, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock

ONE_STORE = True
TABLES = {"log_store": {"enabled": True}}
# The workspace of the module must exist, also for tests that use only keys of their own.
pytestmark = pytest.mark.usefixtures("workspace")


@pytest.fixture(scope="module")
def workspace(admin: Client) -> Client:
    """Returns a client with a key of a workspace of its own. Its name is that of the workspace."""
    return create_workspace(admin, "limited")


def workspace_id(admin: Client) -> str:
    rows = admin.read("/v1/workspaces?page_size=100")["data"]
    return next(row["id"] for row in rows if row["name"] == "limited")


def new_key(admin: Client, **fields: object) -> Client:
    """Creates a key of the workspace and waits until the data plane knows it."""
    fields = {"workspace_id": workspace_id(admin), "scopes": ["completions.write"], **fields}
    client = admin.with_new_key(**fields)

    def is_known() -> bool | None:
        # An invalid body is rejected after the key is checked, and counts for no limit.
        headers = request_headers(client)
        return send_raw_request(client.gateway.base_url, CHAT_PATH, b"{", headers).status == 400 or None

    wait_for("the key", is_known)
    return client


def request_headers(client: Client, **headers: str) -> dict[str, str]:
    sent = {
        "x-gateway-api-key": client.key,
        "x-gateway-provider": "mock",
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return {name: value for name, value in sent.items() if value}


def send_chat(client: Client, model: str = "mock", **headers: str) -> Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    sent = request_headers(client, **headers)
    return send_raw_request(client.gateway.base_url, CHAT_PATH, json.dumps(body).encode(), sent)


def count_tokens(response: Response) -> int:
    """Returns the tokens of a successful response."""
    assert response.status == 200, response
    return response.json()["usage"]["total_tokens"]


def create_policy(admin: Client, kind: str, **fields: object) -> str:
    """Creates a policy in the workspace; returns its id."""
    body = {"name": "a policy", "workspace_id": workspace_id(admin), **fields}
    return admin.create(f"/v1/policies/{kind}-limits", body)["id"]


def case_policy(case: str) -> dict[str, object]:
    condition = {"key": "metadata.case", "value": case}
    return {"name": f"policy {case}", "conditions": [condition], "group_by": [{"key": "metadata.user"}]}


def send_until_limited(client: Client, **headers: str) -> tuple[int, Response]:
    """Sends requests until one is rejected; returns how many were admitted before, and the rejection."""
    for count in range(1000):
        response = send_chat(client, **headers)
        if response.status != 200:
            return count, response
    raise AssertionError


def wait_for_limit(client: Client, **headers: str) -> None:
    """Waits until the data plane reports a limit in its responses."""
    wait_for("the limit", lambda: send_chat(client, **headers).get_header("ratelimit"))


def test_rate_limit_of_a_key_admits_exactly_its_value(admin: Client, workspace: Client):
    client = new_key(admin, name="fast", rate_limits=[{"type": "requests", "unit": "rpd", "value": 5}])
    count, refused = send_until_limited(client)
    assert count == 5
    assert (refused.status, refused.get_header("x-should-retry")) == (429, "false")
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limited", "fast")
    assert "rate limit of API key `fast` reached: 5 requests per day" in error["message"]
    assert 0 < int(refused.get_header("retry-after") or "") <= 86_400
    # Another key of the workspace is not limited.
    assert send_chat(workspace).status == 200


def test_limited_caller_learns_what_is_left(admin: Client, workspace: Client):
    client = new_key(admin, name="shown", rate_limits=[{"type": "requests", "unit": "rph", "value": 7}])
    response = send_chat(client)
    assert response.get_header("ratelimit-policy") == '"api-key-shown-requests";q=7;w=3600'
    assert (response.get_header("ratelimit") or "").startswith('"api-key-shown-requests";r=6;t=')
    assert response.get_header("x-gateway-ratelimit-limit-requests") == "7"
    assert response.get_header("x-gateway-ratelimit-remaining-requests") == "6"
    assert send_chat(workspace).get_header("ratelimit") is None


def test_budget_of_a_key_ends_with_412_and_is_reset(admin: Client):
    client = new_key(admin, name="poor", usage_limits={"type": "tokens", "credit_limit": 100})
    tokens = count_tokens(send_chat(client))
    count, refused = send_until_limited(client)
    assert 100 // tokens - 2 <= count <= 100 // tokens
    assert (refused.status, refused.json()["error"]["code"]) == (412, "04")
    assert refused.json()["message"].endswith("Error Code: 04")
    assert refused.get_header("x-should-retry") == "false"
    key_id = next(row["id"] for row in admin.read("/v1/api-keys?page_size=100")["data"] if row["name"] == "poor")
    expect_ok(admin.put(f"/v1/api-keys/{key_id}", {"reset_usage": True}))
    wait_for("the reset", lambda: send_chat(client).status == 200 or None)


def test_budget_of_a_workspace_is_reset_by_the_organisation_only(admin: Client):
    budget = {"type": "requests", "credit_limit": 2}
    poor = admin.create("/v1/admin/workspaces", {"name": "poor", "usage_limits": budget})
    path = f"/v1/admin/workspaces/{poor['id']}"
    client = new_key(admin, name="of the poor", workspace_id=poor["id"])
    count, refused = send_until_limited(client)
    assert (count, refused.status) == (2, 412)
    own = admin.with_new_key(workspace_id=poor["id"], scopes=["workspaces.update"])
    expect_error(own.put(path, {"reset_usage": True}), 403, "AB03", "reset_usage can be set only by keys and admins")
    expect_ok(admin.put(path, {"reset_usage": True}))
    wait_for("the reset", lambda: send_chat(client).status == 200 or None)
    assert admin.read(path)["last_reset_at"]


def test_policy_counts_each_group_for_itself(admin: Client, workspace: Client):
    create_policy(admin, "rate", **case_policy("groups"), type="requests", unit="rpd", value=2)
    metadata = {user: json.dumps({"case": "groups", "user": user}) for user in ("ann", "bob")}
    wait_for_limit(workspace, x_gateway_metadata=json.dumps({"case": "groups", "user": "first"}))
    for value in metadata.values():
        count, refused = send_until_limited(workspace, x_gateway_metadata=value)
        assert (count, refused.status) == (2, 429)
    # A request without the group's value is a group of its own.
    count, _ = send_until_limited(workspace, x_gateway_metadata='{"case": "groups"}')
    assert count == 2
    assert send_chat(workspace, x_gateway_metadata='{"case": "other"}').status == 200


def test_dry_run_only_counts(admin: Client, workspace: Client):
    create_policy(admin, "rate", **case_policy("dry"), type="requests", unit="rpd", value=1, dry_run=True)
    metadata = json.dumps({"case": "dry", "user": "u"})
    wait_for_limit(workspace, x_gateway_metadata=metadata)
    responses = [send_chat(workspace, x_gateway_metadata=metadata) for _ in range(3)]
    assert {response.status for response in responses} == {200}
    name = responses[-1].get_header("x-gateway-request-id")

    def find_record() -> dict[str, Any] | None:
        return next((record for record in workspace.gateway.records() if record["id"] == name), None)

    assert len(wait_for("the record", find_record)["limits"]["would_reject"]) == 1


def test_target_over_its_limit_is_left_for_the_next(admin: Client, workspace: Client):
    target_workspace = {"workspace_id": workspace_id(admin)}
    limits = {"rate_limits": [{"type": "requests", "unit": "rpd", "value": 2}]}
    virtual_key = admin.create(
        "/v1/virtual-keys", {"name": "small", "provider": "mock", "key": "k", **limits, **target_workspace}
    )
    config = {
        "strategy": {"mode": "fallback", "on_status_codes": [429]},
        "targets": [
            {"provider": f"@{virtual_key['slug']}"},
            {"provider": "mock"},
        ],
    }
    saved = admin.create("/v1/configs", {"name": "two", "config": config, **target_workspace})
    headers = {"x_gateway_config": saved["slug"], "x_gateway_provider": ""}
    wait_for("the config", lambda: send_chat(workspace, **headers).status == 200 or None)
    used = [send_chat(workspace, **headers).get_header("x-gateway-last-used-option-index") for _ in range(4)]
    assert used[-2:] == ["config.targets[1]"] * 2, used
    # Without another target, the client gets the rejection.
    count, refused = send_until_limited(workspace, x_gateway_provider=f"@{virtual_key['slug']}")
    assert (count, refused.status, refused.json()["error"]["param"]) == (0, 429, virtual_key["slug"])


def test_ledger_adds_up_what_the_records_say(admin: Client, workspace: Client):
    policy = create_policy(admin, "usage", **case_policy("ledger"), type="tokens", credit_limit=10_000)
    metadata = json.dumps({"case": "ledger", "user": "eve"})
    wait_for_limit(workspace, x_gateway_metadata=json.dumps({"case": "ledger", "user": "first"}))
    tokens = sum(count_tokens(send_chat(workspace, x_gateway_metadata=metadata)) for _ in range(5))

    def read_usage() -> Any:
        fetched = admin.read(f"/v1/policies/usage-limits/{policy}?include_usage=true")["value_key_usage_map"]
        usage = fetched.get("eve", {}).get("current_usage", 0)
        return fetched if usage >= tokens else None

    usage = wait_for("the usage", read_usage, 10)["eve"]
    assert (usage["current_usage"], usage["status"]) == (tokens, "active")
    (entity,) = admin.read(f"/v1/policies/usage-limits/{policy}/entities?search=eve")["data"]
    expect_ok(admin.put(f"/v1/policies/usage-limits/{policy}/entities/{entity['id']}/reset", {}))
    (entity,) = admin.read(f"/v1/policies/usage-limits/{policy}/entities?search=eve")["data"]
    assert entity["current_usage"] == 0


def test_exhausted_group_is_admitted_again_after_its_reset(admin: Client, workspace: Client):
    policy = create_policy(admin, "usage", **case_policy("again"), type="requests", credit_limit=3)
    metadata = json.dumps({"case": "again", "user": "u"})
    wait_for_limit(workspace, x_gateway_metadata=json.dumps({"case": "again", "user": "first"}))
    count, refused = send_until_limited(workspace, x_gateway_metadata=metadata)
    assert (count, refused.status, refused.json()["error"]["code"]) == (3, 412, "usage_limit_exceeded")

    def find_entity() -> dict[str, Any] | None:
        rows = admin.read(f"/v1/policies/usage-limits/{policy}/entities?search=u")["data"]
        return next((row for row in rows if row["value_key"] == "u" and row["current_usage"] == 3), None)

    entity = wait_for("the usage", find_entity, 10)

    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    query = (
        f"start_time=2020-01-01T00:00:00Z&end_time=2099-01-01T00:00:00Z&organisation_id={organisation}&action=exhaust"
    )

    def find_alerts() -> list[str] | None:
        rows = admin.read(f"/v1/audit-logs?{query}")["records"]
        return [row["resource_type"] for row in rows if row["resource_id"] == policy] or None

    assert wait_for("the entry in the audit log", find_alerts, 10) == ["usage_limits_policies"]
    (row,) = admin.read(f"/v1/policies/usage-limits/{policy}/entities?status=exhausted")["data"]
    assert row["value_key"] == "u"
    expect_ok(admin.put(f"/v1/policies/usage-limits/{policy}/entities/{entity['id']}/reset", {}))
    wait_for("the reset", lambda: send_chat(workspace, x_gateway_metadata=metadata).status == 200 or None, 10)


def test_sdk_does_not_repeat_rejected_requests(admin: Client, provider: Mock):
    client = new_key(admin, name="sdk", rate_limits=[{"type": "requests", "unit": "rpd", "value": 1}])
    sdk = openai.OpenAI(
        api_key=client.key, base_url=f"{client.gateway.base_url}/v1", default_headers={"x-gateway-provider": "mock"}
    )
    messages: Any = [{"role": "user", "content": "hello"}]
    with sdk:
        sdk.chat.completions.create(model="mock", messages=messages)
        before = len(provider.ledger())
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.chat.completions.create(model="mock", messages=messages)
    assert caught.value.code == "rate_limited"
    assert len(provider.ledger()) == before


def test_sdks_do_not_repeat_requests_over_a_budget(admin: Client, provider: Mock):
    limits = {"type": "requests", "credit_limit": 2}
    client = new_key(admin, name="spent sdk", usage_limits=limits)
    headers = {"x-gateway-provider": "mock", "x-gateway-api-key": client.key}
    messages: Any = [{"role": "user", "content": "hello"}]
    url = client.gateway.base_url
    with (
        openai.OpenAI(api_key=client.key, base_url=f"{url}/v1", default_headers=headers) as of_openai,
        anthropic.Anthropic(api_key=client.key, base_url=url, default_headers=headers) as of_anthropic,
    ):
        of_openai.chat.completions.create(model="mock", messages=messages)
        of_anthropic.messages.create(model="mock", max_tokens=5, messages=messages)
        before = len(provider.ledger())
        with pytest.raises(openai.APIStatusError) as refused:
            of_openai.chat.completions.create(model="mock", messages=messages)
        with pytest.raises(anthropic.APIStatusError) as also_refused:
            of_anthropic.messages.create(model="mock", max_tokens=5, messages=messages)
        limited = new_key(admin, name="fast sdk", rate_limits=[{"type": "requests", "unit": "rpd", "value": 0}])
        with pytest.raises(anthropic.RateLimitError):
            of_anthropic.with_options(default_headers={**headers, "x-gateway-api-key": limited.key}).messages.create(
                model="mock", max_tokens=5, messages=messages
            )
    assert (refused.value.status_code, refused.value.code) == (412, "04")
    assert also_refused.value.status_code == 412
    assert "usage limit of API key `spent sdk`" in also_refused.value.message
    # No rejected request reached the provider, and the SDKs sent none again.
    assert len(provider.ledger()) == before

    def find_refusals() -> list[str] | None:
        records = [record for record in client.gateway.records() if (record.get("limits") or {}).get("rejections")]
        names = [record["api_key_name"] for record in records if record["api_key_name"].endswith(" sdk")]
        return names if len(names) >= 3 else None

    assert sorted(wait_for("the refusals", find_refusals)) == ["fast sdk", "spent sdk", "spent sdk"]


def test_workers_share_a_limit_and_remember_it(provider: Mock, tmp_path: Path):
    tables = {"mock": {"host": provider.url}, "server": {"workers": 3}}
    env = {"PENSTOCK_STORE_URL": f"sqlite:///{tmp_path}/penstock.db", "PENSTOCK_ADMIN_KEY": ADMIN_KEY}
    with run_gateway(tmp_path, tables, env=env) as gateway:
        edge_pids(gateway, 3)
        admin = Client(gateway)
        create_workspace(admin, "limited")
        client = new_key(admin, name="many", rate_limits=[{"type": "requests", "unit": "rpd", "value": 300}])
        with ThreadPoolExecutor(16) as pool:
            statuses = list(pool.map(lambda _: send_chat(client).status, range(600)))
        assert (statuses.count(200), statuses.count(429)) == (300, 300)
    with run_gateway(tmp_path, tables, env=env) as gateway:
        again = Client(gateway, client.key)
        wait_for("a response", lambda: send_chat(again).status in {200, 429} or None)
        assert send_chat(again).status == 429


def test_usage_shows_what_requests_in_progress_hold(admin: Client, workspace: Client):
    policy = create_policy(
        admin, "usage", **case_policy("reserved"), type="tokens", credit_limit=1000, enforcement="hard"
    )
    metadata = json.dumps({"case": "reserved", "user": "kim"})
    wait_for_limit(workspace, x_gateway_metadata=metadata)

    def read_reserved() -> float | None:
        rows = admin.read(f"/v1/limits/usage?workspace_id={workspace_id(admin)}&page_size=1000")["data"]
        return next((row["reserved"] for row in rows if row["limit_id"] == policy), None)

    wait_for("the usage", lambda: read_reserved() is not None)
    body = {"model": "mock?first_ms=600000", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    headers = request_headers(workspace, x_gateway_metadata=metadata)
    with RawConnection(admin.gateway.base_url) as connection:
        connection.send(encode_request("POST", CHAT_PATH, headers, json.dumps(body).encode()))
        assert 10 <= wait_for("the reserved amount", lambda: read_reserved() or None, 60) <= 1000
    wait_for("the end of the hold", lambda: read_reserved() == 0 or None, 60)


def test_usage_refusals_and_simulations_show_who_is_close_to_a_limit(admin: Client, workspace: Client):
    target_workspace = workspace_id(admin)
    policy = create_policy(admin, "usage", **case_policy("near"), type="requests", credit_limit=4)
    metadata = json.dumps({"case": "near", "user": "kim"})
    wait_for_limit(workspace, x_gateway_metadata=json.dumps({"case": "near", "user": "first"}))
    count, _ = send_until_limited(workspace, x_gateway_metadata=metadata)
    assert count == 4

    def find_usage() -> dict[str, Any] | None:
        rows = admin.read(f"/v1/limits/usage?workspace_id={target_workspace}&min_used_percent=100")["data"]
        return next((row for row in rows if (row["limit_id"], row["value_key"]) == (policy, "kim")), None)

    usage = wait_for("the usage", find_usage, 10)
    assert (usage["kind"], usage["owner_name"], usage["current_usage"], usage["credit_limit"]) == (
        "policy",
        "policy near",
        4,
        4,
    )
    assert admin.read(f"/v1/limits/usage?workspace_id={target_workspace}&min_used_percent=101")["total"] == 0

    def find_refusal() -> dict[str, Any] | None:
        rows = admin.read(f"/v1/limits/refusals?workspace_id={target_workspace}&days=1")["data"]
        return next((row for row in rows if (row["limit_id"], row["value_key"]) == (policy, "kim")), None)

    refusal = wait_for("the refusal", find_refusal, 10)
    assert (refusal["refused"], refusal["owner_id"]) == (1, policy)
    assert refusal["api_key_id"]
    fields = {
        "conditions": [{"key": "metadata.case", "value": "near"}, {"key": "metadata.user", "value": "first"}],
        "group_by": [{"key": "metadata.user"}, {"key": "endpoint_type"}],
        "type": "requests",
        "credit_limit": 3,
    }

    def simulate(**more: object) -> dict[str, Any]:
        return expect_ok(admin.post("/v1/limits/simulate", {"workspace_id": target_workspace, "days": 1, **more}))

    actual = wait_for("the logs", lambda: (item := simulate(policy_id=policy))["matched"] > 4 and item)
    groups = {row["value_key"]: row for row in actual["data"]}
    assert (groups["kim"]["requests"], groups["kim"]["refused"], groups["kim"]["peak"]) == (4, 0, 4)
    fields["conditions"] = [{"key": "metadata.user", "value": "k*"}, {"key": "metadata.case", "value": "near"}]
    actual = simulate(**fields)
    assert (actual["matched"], actual["refused"], actual["complete"]) == (4, 1, True)
    assert actual["data"][0]["value_key"] == "kim|chatComplete"
    refused = admin.post("/v1/limits/simulate", {"type": "cost", "unit": "rpm", "group_by": [{"key": "colour"}]})
    assert refused.status == 400
    problems = json.dumps(refused.json())
    assert all(name in problems for name in ("conditions", "colour", "value", "cost")), problems


def test_keys_workspaces_and_providers_show_their_usage(admin: Client):
    client = new_key(admin, name="shows usage", usage_limits={"type": "requests", "credit_limit": 50})
    assert [send_chat(client).status for _ in range(3)] == [200] * 3
    rows = admin.read("/v1/api-keys?page_size=100")["data"]
    key_id = next(row["id"] for row in rows if row["name"] == "shows usage")

    def read_usage() -> float | None:
        actual = admin.read(f"/v1/api-keys/{key_id}")["current_usage"]
        return actual if actual >= 3 else None

    assert wait_for("the usage", read_usage, 10) == 3
    (row,) = [item for item in admin.read("/v1/api-keys?page_size=100")["data"] if item["id"] == key_id]
    assert row["current_usage"] == 3
    assert admin.read(f"/v1/workspaces/{workspace_id(admin)}")["current_usage"] is None
    # Nothing is left of a limit that is lowered.
    expect_ok(admin.put(f"/v1/api-keys/{key_id}", {"usage_limits": {"type": "requests", "credit_limit": 3}}))
    listed = admin.read(f"/v1/api-keys?ids={key_id}")["data"]
    assert [row["status"] for row in (admin.read(f"/v1/api-keys/{key_id}"), *listed)] == ["exhausted"] * 2
    expect_ok(admin.put(f"/v1/api-keys/{key_id}", {"usage_limits": {"type": "requests", "credit_limit": 50}}))
    assert admin.read(f"/v1/api-keys/{key_id}")["status"] == "active"
    # A key may be sent back as it was read, although its usage has changed since.
    key = admin.read(f"/v1/api-keys/{key_id}")
    expect_ok(admin.put(f"/v1/api-keys/{key_id}", {**key, "current_usage": 1}))


def test_rates_that_come_close_to_their_limit_are_listed(admin: Client, workspace: Client):
    place = workspace_id(admin)
    policy = create_policy(admin, "rate", **case_policy("rates"), type="requests", unit="rpd", value=10)
    client = new_key(admin, name="rated", rate_limits=[{"type": "requests", "unit": "rpd", "value": 4}])
    metadata = json.dumps({"case": "rates", "user": "kim"})
    wait_for_limit(workspace, x_gateway_metadata=json.dumps({"case": "rates", "user": "first"}))
    assert {send_chat(workspace, x_gateway_metadata=metadata).status for _ in range(8)} == {200}
    count, _ = send_until_limited(client)
    assert count == 4

    def find_rates() -> dict[tuple[str, str], dict[str, Any]] | None:
        rows = admin.read(f"/v1/limits/rates?workspace_id={place}")["data"]
        usage_rows = {(row["kind"], row["value_key"]): row for row in rows if row["limit_id"] == policy}
        usage_rows |= {(row["kind"], ""): row for row in rows if row["owner_name"] == "rated"}
        is_logged = usage_rows.get(("policy", "kim"), {}).get("peak_usage") == 8
        return usage_rows if is_logged and usage_rows.get(("api_key", ""), {}).get("peak_usage") == 4 else None

    rates = wait_for("the rates", find_rates, 10)
    of_policy, of_key = rates["policy", "kim"], rates["api_key", ""]
    assert (of_policy["used_percent"], of_policy["unit"], of_policy["value"]) == (80, "rpd", 10)
    # Rejected requests do not count as usage.
    assert (of_key["used_percent"], of_key["current_usage"]) == (100, 4)
    near = admin.read(f"/v1/limits/rates?workspace_id={place}&min_used_percent=90")["data"]
    assert {row["owner_name"] for row in near} >= {"rated"}
    assert not [row for row in near if row["limit_id"] == policy]


def test_policies_that_match_nothing_are_listed(admin: Client, workspace: Client):
    place = workspace_id(admin)
    lost = create_policy(
        admin,
        "rate",
        name="lost",
        conditions=[{"key": "model", "value": ["@nobody/*", "@gone/gpt"]}, {"key": "config", "value": "pc-none"}],
        group_by=[{"key": "api_key"}],
        type="requests",
        unit="rpm",
        value=5,
    )
    idle = create_policy(admin, "usage", **case_policy("nobody sends this"), type="requests", credit_limit=4)
    met = create_policy(admin, "usage", **case_policy("met"), type="requests", credit_limit=400)
    assert send_chat(workspace, x_gateway_metadata='{"case": "met"}').status == 200

    def read_warnings(client: Client, **query: str) -> dict[str, dict[str, str]]:
        words = "&".join(f"{name}={value}" for name, value in {"workspace_id": place, "days": "1", **query}.items())
        warnings: dict[str, dict[str, str]] = {}
        for row in client.read(f"/v1/limits/unmatched?{words}")["data"]:
            warnings.setdefault(row["policy_id"], {})[row["path"]] = row["message"]
        return warnings

    wait_for("the log", lambda: met not in read_warnings(admin) or None, 10)
    warnings = read_warnings(admin)
    assert warnings[lost]["conditions[0].value"] == "'@nobody/*', '@gone/gpt' name no provider of the workspace"
    assert warnings[lost]["conditions[1].value"] == "'pc-none' names no config of the workspace"
    assert "requests met its conditions" in warnings[idle][""]
    assert list(read_warnings(admin, policy_id=lost)) == [lost]
    # A caller that may not list objects of a kind does not learn whether one exists.
    reader = admin.with_new_key(workspace_id=place, scopes=["policies.list", "analytics.view", "configs.list"])
    assert set(read_warnings(reader)[lost]) == {"conditions[1].value", ""}
