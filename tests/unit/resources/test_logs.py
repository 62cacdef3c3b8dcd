"""Request logs: lists, search, one log, the live stream, traces, and logs that clients send."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.log_api.service import LogService
from tests.unit.resources.logged import RANGE, SETTINGS_FILE, LocalLogs, open_workspace, run_logged, write_prices

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

ONE_STORE = True

READ_SCOPES = ["logs.list", "logs.view", "analytics.view"]
WRITE_SCOPES = ["completions.write", "logs.write", *READ_SCOPES]
CANARY = "sk-canary-of-the-logs-0123456789"
CUSTOM_LOG = {
    "request": {
        "url": f"https://user:{CANARY}@api.openai.com/v1/chat/completions?api_key={CANARY}&a=b&sig={CANARY}&access%5Ftoken={CANARY}&c={CANARY}",
        "method": "POST",
        "headers": {
            "Authorization": f"Bearer {CANARY}",
            "Content-Type": "application/json",
            "Referer": f"https://h/?k={CANARY}",
        },
        "body": {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "hello"}],
            "tools": [{"type": "mcp", "authorization": CANARY, "headers": {"x-team": CANARY}}],
            "mcp_servers": [{"url": f"https://h/mcp?token={CANARY}", "authorization_token": CANARY}],
        },
    },
    "response": {
        "status": 200,
        "headers": {"content-type": "application/json"},
        "body": {
            "choices": [{"message": {"content": "good morning"}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        },
        "response_time": 321,
    },
    "metadata": {"traceId": "trace-1", "span_id": "span-1", "_user": "ann", "team": "red"},
}


async def create_workspace_key(
    api: ManagementClient, scopes: list[str], name: str = "w"
) -> tuple[dict[str, str], ManagementClient]:
    home = await open_workspace(api, name)
    _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=scopes)
    return home, client


def test_pages_of_a_list_follow_its_cursor(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, READ_SCOPES)
        created = [logs.record(**home, after=timedelta(seconds=number)) for number in range(5)]
        page_ids: list[str] = []
        cursor = ""
        while True:
            page = await reader.request_ok("GET", f"logs?page_size=2{cursor}")
            assert (page["object"], page["has_more"]) == ("list", page["next_cursor"] is not None)
            page_ids += [row["id"] for row in page["data"]]
            if not page["has_more"]:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert page_ids == created[::-1]
        (oldest,) = (await reader.request_ok("GET", "logs?page_size=1&order=asc"))["data"]
        assert (oldest["id"], oldest["cost"], oldest["object"]) == (created[0], 2, "log")
        assert not {"request_headers", "body_key"} & oldest.keys()
        await reader.expect_error(400, "cursor", "GET", "logs?cursor=x")
        await reader.expect_error(400, "page_size", "GET", "logs?page_size=1001")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_filters_take_several_values_and_reject_unknown_names(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, READ_SCOPES)
        created = [
            logs.record(**home, ai_model=name, outcome="killed" if name == "c" else "complete") for name in "abc"
        ]
        created += [logs.record(**home, ai_model="d", response_status_code=None)]

        async def find(query: str) -> list[str]:
            return sorted(row["id"] for row in (await reader.request_ok("GET", f"logs?{query}"))["data"])

        assert await find("ai_model=a&ai_model=b,c&ai_model=a") == sorted(created[:3])
        assert await find("ai_model=b&ai_model=c") == sorted(created[1:3])
        assert await find("outcome=killed,cut") == created[2:3]
        assert await find("status_code=0,599") == created[3:]
        await reader.expect_error(400, "expected one of complete, refused", "GET", "logs?outcome=gone")
        await reader.expect_error(
            400, "'hedge' is not allowed: expected one of retry, fallback", "GET", "logs?rescued=hedge"
        )
        for path in ("logs", "logs/tail", "analytics/graphs/cost", "analytics/groups/users", "analytics/summary/cache"):
            await reader.expect_error(400, "did you mean status_code?", "GET", f"{path}?status_codes=500")
        await reader.expect_error(400, "more than once", "GET", "logs?cost_min=1&cost_min=2")
        # All problems at once.
        _, error, _ = await reader("GET", "logs?stat=1&outcome=x&page_siz=3")
        assert all(name in str(error) for name in ("'x' is not allowed", "stat", "did you mean page_size?"))

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_list_of_an_organisation_shows_the_default_workspace_unless_another_is_named(
    bootstrapped_url: Secret, tmp_path: Path
):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api, "w")
        rows_by_id = {row["id"]: row for row in (await api.request_ok("GET", "admin/workspaces"))["data"]}
        (default,) = (row for row in rows_by_id.values() if row["is_default"])
        visible_id = logs.record(**{**home, "workspace_id": default["id"], "workspace_slug": default["slug"]})
        other = logs.record(**home)

        async def find(query: str) -> set[str]:
            return {row["id"] for row in (await api.request_ok("GET", f"logs?{query}"))["data"]}

        assert await find("") == {visible_id}
        assert await find(f"workspace_slug={home['workspace_slug']}") == {other}
        assert await find("workspace_slug=*") == {visible_id, other}

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_search_finds_words_of_bodies_for_callers_that_may_view_them(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, READ_SCOPES)
        log_id = logs.record((CUSTOM_LOG["request"]["body"], {"choices": [{"message": {"content": "zebra"}}]}), **home)
        logs.record(**home)
        rows = (await reader.request_ok("GET", f"logs?q=zebra&{RANGE}"))["data"]
        assert [row["id"] for row in rows] == [log_id]
        _, lister = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=["logs.list"])
        assert len((await lister.request_ok("GET", "logs"))["data"]) == 2
        await lister.expect_error(403, "logs.view", "GET", "logs?q=zebra")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_log_has_its_request_response_and_figures(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, READ_SCOPES)
        request, responded = {"model": "gpt-5"}, {"id": "r"}
        headers = {"x-gateway-trace-id": "t", "x-portkey-metadata": "{}", "accept": "*/*"}
        sent = {"url": "https://h/v1/x?key=***", "method": "PUT", "headers": {"authorization": "***", "accept": "a"}}
        log_id = logs.record(
            (request, responded, sent),
            **home,
            request_headers=headers,
            last_used_option_index="config.targets[1]",
            body="complete",
        )
        log = await reader.request_ok("GET", f"logs/{log_id}?path_format=v2&created_at=2026-11-20T12:00:00Z")
        assert log["_id"] == log_id
        assert log["request"] == {
            "url": "/v1/chat/completions",
            "method": "POST",
            "headers": headers,
            "body": request,
            "gatewayHeaders": {"trace-id": "t", "metadata": "{}"},
        }
        assert log["response"]["body"] == log["originalResponse"]["body"] == responded
        assert log["transformedRequest"] == {"body": None, **sent}
        assert log["response"]["lastUsedOptionJsonPath"] == "config.targets[1]"
        metrics = log["metrics"]
        assert (metrics["cost"], metrics["cost_currency"], metrics["workspace_slug"]) == (
            2,
            "USD",
            home["workspace_slug"],
        )
        assert log["created_at"].startswith("2026-11-20T12:00:00")
        await reader.expect_error(404, "no log with the id", "GET", "logs/0199aaaa-0000-7000-8000-000000000001")
        await reader.expect_error(404, "no log with the id", "GET", "logs/x")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_workspace_key_sees_its_workspace_only(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, WRITE_SCOPES)
        other, other_client = await create_workspace_key(api, WRITE_SCOPES, "other")
        log_id = logs.record(({}, {}), **home, trace_id="t")
        elsewhere = logs.record(({}, {}), **other, trace_id="t")
        foreign = logs.record(({}, {}), **{**home, "organisation_id": "o"}, trace_id="t")
        for client, own, others in ((reader, log_id, elsewhere), (other_client, elsewhere, log_id)):
            # A key of a workspace may name any workspace; it is ignored.
            for query in ("", f"workspace_slug={home['workspace_slug']}", "workspace_slug=*"):
                assert [row["id"] for row in (await client.request_ok("GET", f"logs?{query}"))["data"]] == [own]
            assert [row["id"] for row in (await client.request_ok("GET", "traces/t"))["data"]] == [own]
            assert (await client.request_ok("GET", f"analytics/graphs/requests?{RANGE}"))["summary"]["total"] == 1
            for hidden in (others, foreign):
                await client.expect_error(404, "no log with the id", "GET", f"logs/{hidden}")
        whole = await api.request_ok("GET", "logs?workspace_slug=*")
        assert {row["id"] for row in whole["data"]} == {log_id, elsewhere}
        page = await api.request_ok("GET", f"logs?workspace_slug={other['workspace_slug']}")
        assert [row["id"] for row in page["data"]] == [elsewhere]
        # Without a workspace, analytics are those of the default workspace.
        for query, total in (("", 0), ("&workspace_slug=*", 2), (f"&workspace_slug={home['workspace_id']}", 1)):
            graph = await api.request_ok("GET", f"analytics/graphs/requests?{RANGE}{query}")
            assert graph["summary"]["total"] == total
        groups = await api.request_ok("GET", f"analytics/groups/workspaces?{RANGE}")
        assert {row["workspace"] for row in groups["data"]} == {home["workspace_slug"], other["workspace_slug"]}

    run_logged(bootstrapped_url, tmp_path, scenario)


async def join_workspace(api: ManagementClient, workspace_id: str, role: str) -> tuple[str, ManagementClient]:
    """Creates a user with a role in a workspace; returns the user's id, and a client with the user's key."""
    user = await api.create_user(f"{role}@x.test", workspaces=[{"id": workspace_id, "role": role}])
    _, client = await api.create_key("workspace/user", workspace_id=workspace_id, user_id=user, scopes=WRITE_SCOPES)
    return user, client


def test_restricted_roles_see_their_own_requests_only(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, service = await create_workspace_key(api, READ_SCOPES)
        workspace = home["workspace_id"]
        user, member = await join_workspace(api, workspace, "member")
        _, manager = await join_workspace(api, workspace, "manager")
        own = logs.record(({}, {}), **home, user_id=user, trace_id="t")
        # A token may name its user by email address.
        (person,) = [person for person in (await api.request_ok("GET", "admin/users"))["data"] if person["id"] == user]
        with_token = logs.record(({}, {}), **home, user_id=person["email"].lower(), trace_id="t")
        others = logs.record(({}, {}), **home, user_id="somebody", trace_id="t")

        async def visible(client: ManagementClient) -> set[str]:
            client.clear_caller_cache()
            listed = {row["id"] for row in (await client.request_ok("GET", "logs"))["data"]}
            traced = {row["id"] for row in (await client.request_ok("GET", "traces/t"))["data"]}
            graph = await client.request_ok("GET", f"analytics/graphs/requests?{RANGE}")
            opened = {
                log_id for log_id in (own, with_token, others) if (await client("GET", f"logs/{log_id}"))[0] == 200
            }
            assert listed == traced == opened
            assert graph["summary"]["total"] == len(listed)
            return listed

        assert await visible(member) == {own, with_token, others}
        settings = "admin/organisation/settings"
        await api.request_ok("PUT", settings, {"data_visibility": {"membersViewAllData": False}})
        assert await visible(member) == {own, with_token}
        assert await visible(manager) == await visible(service) == {own, with_token, others}
        # The workspace's own flag takes precedence.
        await api.request_ok("PUT", f"workspaces/{workspace}", {"security_settings": {"membersViewAllData": True}})
        assert await visible(member) == {own, with_token, others}
        flags = {"membersViewAllData": False, "managersViewAllData": False}
        await api.request_ok("PUT", f"workspaces/{workspace}", {"security_settings": flags})
        assert await visible(member) == {own, with_token}
        manager.clear_caller_cache()
        assert (await manager.request_ok("GET", "logs"))["data"] == []
        assert await visible(service) == {own, with_token, others}

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_flags_hide_contents_from_members_and_logs_from_admins(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, service = await create_workspace_key(api, WRITE_SCOPES)
        workspace = home["workspace_id"]
        _, member = await join_workspace(api, workspace, "member")
        log_id = logs.record(({}, {}), **home)
        await api.request_ok("PUT", f"workspaces/{workspace}", {"security_settings": {"membersViewLogs": False}})
        member.clear_caller_cache()
        # Rejected, although the key's scope for writing logs would allow it.
        await member.expect_error(403, "its settings forbid it", "GET", f"logs/{log_id}")
        assert len((await member.request_ok("GET", "logs"))["data"]) == 1
        await service.request_ok("GET", f"logs/{log_id}")
        flags = {"organisationAdminsViewLogs": False}
        await api.request_ok("PUT", f"workspaces/{workspace}", {"security_settings": flags})
        await api.expect_error(404, "no log with the id", "GET", f"logs/{log_id}")
        await api.expect_error(403, "its settings forbid it", "GET", f"logs/{log_id}?workspace_slug={workspace}")
        assert len((await api.request_ok("GET", "logs?workspace_slug=*"))["data"]) == 1
        flags = {"organisationAdminsViewLogMetadata": False}
        await api.request_ok("PUT", f"workspaces/{workspace}", {"security_settings": flags})
        assert (await api.request_ok("GET", "logs?workspace_slug=*"))["data"] == []
        graph = await api.request_ok("GET", f"analytics/graphs/requests?{RANGE}&workspace_slug=*")
        assert graph["summary"]["total"] == 1

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_scopes_decide_who_reads_and_writes(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        log_id = logs.record(({}, {}), **home)
        cases = [
            ("GET", "logs", None, {"logs.list"}),
            ("GET", f"logs/{log_id}", None, {"logs.view", "logs.read", "completions.write", "logs.write"}),
            ("GET", "traces/t", None, {"logs.list"}),
            ("GET", "logs/groups/model", None, {"logs.list", "analytics.view"}),
            ("GET", "analytics/groups/model", None, {"analytics.view"}),
            ("GET", "analytics/graphs/cost", None, {"analytics.view"}),
            ("POST", "feedback", {"trace_id": "t", "value": 1}, {"logs.write"}),
            ("GET", "logs/exports", None, {"logs.list"}),
            ("GET", "logs/exports/field-restrictions", None, {"logs.export"}),
        ]
        scopes = sorted(set().union(*(allowed for *_, allowed in cases)))
        for scope in scopes:
            _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=[scope])
            for method, path, body, allowed in cases:
                status, _, _ = await client(method, path, body)
                assert (status == 403) == (scope not in allowed), (scope, path, status)
            assert (await client("POST", "logs", CUSTOM_LOG))[0] == 403
        both = ["completions.write", "logs.write"]
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=both)
        await client.request_ok("POST", "logs", CUSTOM_LOG)

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_custom_logs_become_records_without_credentials(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home, client = await create_workspace_key(api, WRITE_SCOPES)
        created = await client.request_ok("POST", "logs", CUSTOM_LOG)
        assert created["status"] == "success"
        (log_id,) = created["ids"]
        log = await client.request_ok("GET", f"logs/{log_id}")
        masked = {
            "tools": [{"type": "mcp", "authorization": "***", "headers": {"x-team": "***"}}],
            "mcp_servers": [{"url": "https://h/mcp?token=***", "authorization_token": "***"}],
        }
        assert log["request"]["body"] == {**CUSTOM_LOG["request"]["body"], **masked}
        assert log["response"]["body"] == CUSTOM_LOG["response"]["body"]
        query = "api_key=***&a=b&sig=***&access%5Ftoken=***&c=***"
        assert log["request"]["url"] == f"https://api.openai.com/v1/chat/completions?{query}"
        assert log["request"]["headers"] == {
            "authorization": "*****",
            "content-type": "application/json",
            "referer": "https://h/",
        }
        assert log["finalUntransformedRequest"]["headers"] == log["request"]["headers"]
        assert log["metrics"]["internal_trace_id"] == log_id
        assert CANARY not in json.dumps(log)
        metrics = log["metrics"]
        expected = {
            "ai_org": "openai",
            "ai_model": "gpt-4o",
            "source": "external",
            "trace_id": "trace-1",
            "span_id": "span-1",
            "response_time": 321,
            "is_success": True,
            "workspace_slug": home["workspace_slug"],
            "organisation_id": home["organisation_id"],
        }
        assert {name: metrics[name] for name in expected} == expected
        failed = {**CUSTOM_LOG, "response": {"status": 429, "body": {}}, "metadata": None}
        with_provider = {
            **CUSTOM_LOG,
            "request": {**CUSTOM_LOG["request"], "provider": "@anthropic", "url": "http://x.test"},
        }
        many = await client.request_ok("POST", "logs", [failed, with_provider])
        metrics = [(await client.request_ok("GET", f"logs/{log_id}"))["metrics"] for log_id in many["ids"]]
        assert [(row["is_success"], row["ai_org"]) for row in metrics] == [(False, "openai"), (True, "anthropic")]
        assert metrics[0]["trace_id"] == many["ids"][0]
        status, response, _ = await client("POST", "logs", [{"request": {"body": 1}, "response": {"status": 99}}])
        assert status == 400
        assert {"[0].request.url", "[0].response.body", "[0].response.status"} <= {
            problem["path"] for problem in response["data"]["errors"]
        }
        for items in ([], [CUSTOM_LOG] * 1001):
            await client.expect_error(400, "expected 1 to 1000", "POST", "logs", items)

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_custom_logs_have_the_prices_of_the_operator_and_of_saved_providers(bootstrapped_url: Secret, tmp_path: Path):
    write_prices(tmp_path, priced=0.1)

    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home, client = await create_workspace_key(api, WRITE_SCOPES)
        integration = {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"}
        await api.request_ok("POST", "integrations", integration)
        price = {"type": "static", "pay_as_you_go": {"request_token": {"price": 0.4}}}
        models = {"models": [{"slug": "own", "enabled": True, "pricing_config": price}]}
        await api.request_ok("PUT", "integrations/i/models", models)
        await api.request_ok("PUT", "integrations/i", {"pricing_adjustments": {"multiplier": {"default": 2}}})
        access = {"workspaces": [{"id": home["workspace_id"], "enabled": True}]}
        await api.request_ok("PUT", "integrations/i/workspaces", access)
        provider = {"name": "mine", "slug": "mine", "integration_id": "i", "workspace_id": home["workspace_id"]}
        await api.request_ok("POST", "providers", provider)
        usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}}

        async def price_log(model: str, url: str = "https://api.openai.com/v1/chat/completions", **request: Any) -> Any:
            item = {"request": {"url": url, "body": {"model": model}, **request}, "response": {"body": usage}}
            (log_id,) = (await client.request_ok("POST", "logs", item))["ids"]
            metrics = (await client.request_ok("GET", f"logs/{log_id}"))["metrics"]
            assert metrics["total_units"] == 10
            return metrics["ai_org"], metrics["virtual_key"], metrics["cost"]

        assert await price_log("priced") == ("openai", None, 1)
        assert await price_log("made-up") == ("openai", None, None)
        for source in ({"provider": "@mine"}, {"headers": {"x-gateway-virtual-key": "mine"}}):
            assert await price_log("own", **source) == ("openai", "mine", 8)
            assert await price_log("priced", **source) == ("openai", "mine", 2)
        assert await price_log("priced", "http://x.test", provider="@other") == ("", None, None)
        # Operators may price what the gateway does not know, and change prices while it runs.
        prices = (tmp_path / SETTINGS_FILE).read_text()
        calculator = api.dependency("cost_calculator")
        (tmp_path / SETTINGS_FILE).write_text(prices.replace("openai", "acme"))
        calculator._checked_at = 0
        assert await price_log("priced", "http://x.test", provider="Acme") == ("acme", None, 1)
        (tmp_path / SETTINGS_FILE).write_text("[[prices]]\nprovider = 1\n")
        calculator._checked_at = 0
        assert await price_log("priced", "http://x.test", provider="acme") == ("acme", None, 1)

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_custom_log_is_saved_once_per_idempotency_key(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        _, client = await create_workspace_key(api, WRITE_SCOPES)
        first, again = [await client.request_ok("POST", "logs", CUSTOM_LOG, idempotency_key="k") for _ in range(2)]
        assert first == again
        assert len((await client.request_ok("GET", "logs"))["data"]) == 1

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_damaged_bodies_are_reported_as_such(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, READ_SCOPES)
        log_id = logs.record(({"a": 1}, {"b": 2}), **home)
        assert (await reader.request_ok("GET", f"logs/{log_id}"))["request"]["body"] == {"a": 1}
        (pack,) = (tmp_path / "bodies").rglob("*.pack")
        pack.write_bytes(bytes(pack.stat().st_size))
        log = await reader.request_ok("GET", f"logs/{log_id}")
        assert (log["details"]["body"], log["request"]["body"], log["response"]["body"]) == ("damaged", None, None)
        pack.unlink()
        assert (await reader.request_ok("GET", f"logs/{log_id}"))["details"]["body"] == "expired"

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_workspace_without_debug_log_keeps_no_bodies(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home, client = await create_workspace_key(api, WRITE_SCOPES)
        await api.request_ok("PUT", f"workspaces/{home['workspace_id']}", {"settings": {"debug_log": 0}})
        (log_id,) = (await client.request_ok("POST", "logs", CUSTOM_LOG))["ids"]
        log = await client.request_ok("GET", f"logs/{log_id}")
        assert (log["request"]["body"], log["response"]["body"], log["details"]["body"]) == (None, None, "off")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_trace_is_a_tree_of_spans(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, READ_SCOPES)
        logs.record(**home, trace_id="t", span_id="a")
        logs.record(**home, trace_id="t", span_id="b", parent_span_id="a", after=timedelta(seconds=1))
        logs.record(**home, trace_id="t", span_id="c", parent_span_id="b", after=timedelta(seconds=2))
        trace = await reader.request_ok("GET", "traces/t")
        assert (trace["object"], trace["total"], trace["has_more"]) == ("trace", 3, False)
        spans: list[Any] = []
        row = trace["data"]
        while row:
            (only,) = row
            spans.append(only["span_id"])
            row = only["children"]
        assert spans == ["a", "b", "c"]
        await reader.expect_error(404, "no request with the trace id", "GET", "traces/none")

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_tail_streams_new_logs_of_the_workspace(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home, reader = await create_workspace_key(api, READ_SCOPES)
        other = await open_workspace(api, "other")
        stream = reader.open_stream("logs/tail?status_code=200")
        assert await anext(stream) == ("connected", {})
        next_event = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        for workspace in (other, home):
            logs.record(**workspace, response_status_code=500)
            logs.record(**workspace, metadata={"team": workspace["workspace_slug"]})
        logs.flush()
        name, log = await next_event
        assert (name, log["workspace_id"], log["cost"]) == ("log", home["workspace_id"], 2)
        assert log["metadata"] == {"team": home["workspace_slug"]}
        await stream.aclose()

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_tail_ends_when_the_key_is_deleted(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("penstock.resources.logs.HEARTBEAT_SECONDS", 0.05)

    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home = await open_workspace(api)
        key, reader = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=READ_SCOPES)
        stream = reader.open_stream("logs/tail")
        assert [(await anext(stream))[0] for _ in range(2)] == ["connected", "heartbeat"]
        await api.request_ok("DELETE", f"api-keys/{key}")
        names = [name async for name, _ in stream]
        assert (names[-1], set(names[:-1]) <= {"heartbeat"}) == ("error", True)

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_disabled_logs_are_reported(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        home = await open_workspace(api)
        _, client = await api.create_key("workspace/service", workspace_id=home["workspace_id"], scopes=WRITE_SCOPES)
        await client.expect_error(404, "log_store.enabled", "GET", "logs")
        await client.expect_error(404, "log_store.enabled", "POST", "logs", CUSTOM_LOG)
        await client.expect_error(404, "log_store.enabled", "GET", "analytics/graphs/cost")

    run_logged(bootstrapped_url, tmp_path, scenario, LogService())
