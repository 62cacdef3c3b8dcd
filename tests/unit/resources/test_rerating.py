"""Re-rating of stored logs: corrections at the prices of today, in the log store and the record file."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.log_api import rerating
from penstock.logs.query import MAX_USAGE_ROWS
from penstock.logs.record_file import RecordFileConsumer
from penstock.settings import Records
from tests.unit.resources.logged import RANGE, LocalLogs, open_workspace, run_logged, write_prices

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from penstock.settings.secret import Secret
    from tests.unit.resources.management_api import ManagementClient

ONE_STORE = True

BODY = {"time_of_generation_min": "2026-11-20T00:00:00Z", "time_of_generation_max": "2026-11-21T00:00:00Z"}
CENT = 10_000_000


async def rerate(api: ManagementClient, **fields: Any) -> dict[str, dict[str, Any]]:
    """Re-rates all parts; returns the sums by model."""
    body, actual = {**BODY, **fields}, dict[str, dict[str, Any]]()
    while True:
        part = await api.request_ok("POST", "admin/logs/rerate", body)
        assert (part["object"], part["dry_run"]) == ("rerating", fields.get("dry_run", False))
        for row in part["data"]:
            model, provider = row.pop("ai_model"), row.pop("ai_org")
            assert provider == "openai"
            before = actual.get(model, dict.fromkeys(row, 0))
            actual[model] = {name: round(before[name] + value, 7) for name, value in row.items()}
        if part["next_cursor"] is None:
            return actual
        body |= {name: part[src] for name, src in (("cursor", "next_cursor"), ("time_of_generation_max",) * 2)}


def expect(**fields: Any) -> dict[str, Any]:
    return {"logs": 0, "corrected": 0, "unpriced": 0, "skipped": 0, "old_cost": 0, "new_cost": 0, **fields}


async def read_costs(api: ManagementClient) -> list[tuple[Any, ...]]:
    logs = (await api.request_ok("GET", f"logs?{RANGE}&order=asc&workspace_slug=*"))["data"]
    return [(log["ai_model"], log["cost"], log["previous_cost_nanodollars"]) for log in logs]


def test_wrong_costs_are_corrected_once(bootstrapped_url: Secret, tmp_path: Path):
    write_prices(tmp_path, cheap=0.1, new=0.3)

    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        steps = [timedelta(minutes=minute) for minute in range(6)]
        logs.record(**home, ai_model="cheap", cost_nanodollars=5 * CENT, price_version="old", after=steps[0])
        logs.record(**home, ai_model="cheap", cost_nanodollars=1 * CENT, price_version="right", after=steps[1])
        logs.record(**home, ai_model="new", cost_nanodollars=None, after=steps[2])
        logs.record(**home, ai_model="unknown", cost_nanodollars=7 * CENT, price_version="x", after=steps[3])
        logs.record(**home, ai_model="cheap", cost_nanodollars=0, after=steps[4])
        logs.record(**home, ai_model="cheap", cache_status="hit", cost_nanodollars=0, total_units=None, after=steps[5])
        before = await read_costs(api)
        expected = {
            "cheap": expect(logs=3, corrected=1, skipped=1, old_cost=6, new_cost=2),
            "new": expect(logs=1, corrected=1, new_cost=3),
            "unknown": expect(logs=1, unpriced=1, old_cost=7, new_cost=7),
        }
        assert await rerate(api, dry_run=True) == expected
        assert await read_costs(api) == before
        assert await rerate(api) == expected
        assert await read_costs(api) == [
            ("cheap", 1, 5 * CENT),
            ("cheap", 1, None),
            ("new", 3, None),
            ("unknown", 7, None),
            ("cheap", 0, None),
            ("cheap", 0, None),
        ]
        assert {model: row["corrected"] for model, row in (await rerate(api)).items()} == dict.fromkeys(expected, 0)
        unpriced = await api.request_ok("GET", f"analytics/unpriced?{RANGE}&workspace_slug=*")
        assert unpriced["data"] == []
        # Only what changes is in the audit log: two re-ratings, and no dry run.
        entries = (await api.request_ok("GET", "audit-logs?resource_type=logs"))["records"]
        assert [entry["action"] for entry in entries] == ["rerate"] * 2

    run_logged(bootstrapped_url, tmp_path, scenario)
    lines = read_amendments(tmp_path)
    assert [(line["cost_nanodollars"], line["previous_cost_nanodollars"]) for line in lines] == [
        (1 * CENT, 5 * CENT),
        (3 * CENT, None),
    ]
    assert {line["previous_price_version"] for line in lines} == {"old", None}


def read_amendments(folder: Path) -> list[dict[str, Any]]:
    consumer = RecordFileConsumer(Records(path=str(folder / "records.jsonl")), str(folder / "spool"))
    while consumer.run_once(is_final=True):
        pass
    consumer.close()
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("is_amendment")]


def test_filters_and_parts_cover_the_range(bootstrapped_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_prices(tmp_path, a=0.1, b=0.1)
    # Every slice ends after one page, and every page after two logs.
    monkeypatch.setattr(rerating, "SLICE_SECONDS", 0)
    monkeypatch.setattr(rerating, "PAGE_ROWS", 2)
    assert MAX_USAGE_ROWS > 2

    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        first, second = await open_workspace(api), await open_workspace(api, "other")
        for number in range(9):
            home = first if number % 3 else second
            # Some logs have the same time, and some follow hours without logs.
            after = timedelta(hours=number // 4 * 5)
            logs.record(**home, ai_model="ab"[number % 2], after=after, cost_nanodollars=CENT * 2)
        complete = await rerate(api, dry_run=True)
        assert {model: row["logs"] for model, row in complete.items()} == {"a": 5, "b": 4}
        assert (await rerate(api, dry_run=True, workspace_slug=second["workspace_slug"]))["a"]["logs"] == 2
        assert (await rerate(api, dry_run=True, ai_model="b")).keys() == {"b"}
        assert await rerate(api, dry_run=True, ai_org_model="anthropic__") == {}
        assert (await rerate(api))["a"] == expect(logs=5, corrected=5, old_cost=10, new_cost=5)
        assert {cost for _, cost, _ in await read_costs(api)} == {1}

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_saved_prices_contracts_batches_and_tiers_apply(bootstrapped_url: Secret, tmp_path: Path):
    write_prices(tmp_path, listed=0.1)

    async def scenario(api: ManagementClient, logs: LocalLogs) -> None:
        home = await open_workspace(api)
        integration = await api.request_ok(
            "POST", "integrations", {"name": "i", "slug": "i", "ai_provider_id": "openai", "key": "k"}
        )
        price = {"type": "static", "pay_as_you_go": {"request_token": {"price": 0.4}}}
        models = {"models": [{"slug": "own", "enabled": True, "pricing_config": price}]}
        await api.request_ok("PUT", "integrations/i/models", models)
        await api.request_ok("PUT", "integrations/i", {"pricing_adjustments": {"multiplier": {"default": 2}}})
        access = {"workspaces": [{"id": home["workspace_id"], "enabled": True}]}
        await api.request_ok("PUT", "integrations/i/workspaces", access)
        provider = {"name": "mine", "slug": "mine", "integration_id": "i", "workspace_id": home["workspace_id"]}
        await api.request_ok("POST", "providers", provider)
        usual = {**home, "cost_nanodollars": None, "res_units": 0}
        logs.record(**usual, ai_model="listed")
        logs.record(**usual, ai_model="listed", source="batch", after=timedelta(seconds=1))
        logs.record(**usual, ai_model="listed", virtual_key="mine", after=timedelta(seconds=2))
        logs.record(**usual, ai_model="own", virtual_key="mine", after=timedelta(seconds=3))
        logs.record(**usual, ai_model="own", integration_id=integration["id"], after=timedelta(seconds=4))
        logs.record(
            **usual,
            ai_model="x",
            usage={"input": 10, "saved_model": "own"},
            virtual_key="mine",
            after=timedelta(seconds=5),
        )
        gone = {**usual, "cost_nanodollars": CENT, "price_version": "v"}
        logs.record(**gone, ai_model="listed", virtual_key="gone", after=timedelta(seconds=6))
        logs.record(**gone, ai_model="listed", integration_id="gone", after=timedelta(seconds=7))
        actual = await rerate(api)
        assert {model: row["skipped"] for model, row in actual.items()} == {"listed": 2, "own": 0, "x": 0}
        # Ten input tokens each; a batch costs half, and the contract doubles what its provider costs.
        assert [cost for _, cost, _ in await read_costs(api)] == [1, 0.5, 2, 8, 8, 8, 1, 1]

    run_logged(bootstrapped_url, tmp_path, scenario)


def test_wrong_requests_are_rejected(bootstrapped_url: Secret, tmp_path: Path):
    async def scenario(api: ManagementClient, _logs: LocalLogs) -> None:
        path = "admin/logs/rerate"
        await api.expect_error(400, "time_of_generation_min", "POST", path, {})
        await api.expect_error(400, "next_cursor", "POST", path, {**BODY, "cursor": "x"})
        await api.expect_error(400, "provider__model", "POST", path, {**BODY, "ai_org_model": "openai"})
        late = {
            "time_of_generation_min": BODY["time_of_generation_max"],
            "time_of_generation_max": BODY["time_of_generation_min"],
        }
        await api.expect_error(400, "must not exceed", "POST", path, late)
        _, reader = await api.create_key("organisation/service", scopes=["analytics.view", "logs.list"])
        await reader.expect_error(403, "organisation_integrations.update", "POST", path, BODY)

    run_logged(bootstrapped_url, tmp_path, scenario)
