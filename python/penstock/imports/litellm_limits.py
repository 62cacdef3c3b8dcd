"""Budgets and rates of LiteLLM as usage limits and rate limits of keys and workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.imports.litellm_values import parse_duration

if TYPE_CHECKING:
    from penstock.imports.findings import Node

JsonObject = dict[str, Any]

DAY_SECONDS = 86_400
MAX_RESET_DAYS, MIN_CREDIT, MAX_CREDIT = 365, 1, 9_000_000_000
PERIOD_FIELDS = ("periodic_reset", "periodic_reset_days")
MAX_RATE = 1_000_000_000_000


def read_budget(row: Node) -> JsonObject | None:
    """Returns the usage limits that `max_budget`, `soft_budget` and `budget_duration` of a row set."""
    budget, soft, duration = (row.child(name) for name in ("max_budget", "soft_budget", "budget_duration"))
    maximum = budget.number() if budget else None
    if budget is None or maximum is None:
        for other in (soft, duration):
            if other:
                other.report_manual("has no effect without max_budget; set usage_limits")
        return None
    if maximum < MIN_CREDIT:
        budget.report_approximate("credit_limit: at least 1 US dollar")
    else:
        budget.report_exact("credit_limit")
    limits: JsonObject = {"type": "cost", "credit_limit": min(max(maximum, MIN_CREDIT), MAX_CREDIT)}
    alert = soft.number() if soft else None
    if soft and alert is not None:
        if MIN_CREDIT <= alert < limits["credit_limit"]:
            soft.report_exact("alert_threshold")
            limits["alert_threshold"] = alert
        else:
            soft.report_manual("alert_threshold must be at least 1, and less than credit_limit")
    return {**limits, **(_read_period(duration) if duration else {})}


def read_spend(row: Node, limits: JsonObject | None) -> float | None:
    """Returns the spending so far of a row in US dollars, as the initial usage of its limits. Returns `None` if there
    is no spending or no limit.
    """
    spend, reset = row.child("spend"), row.child("budget_reset_at")
    amount = spend.number() if spend else None
    if reset:
        reset.report_approximate(
            "the first period begins with the import; next_usage_reset_at of usage_limits moves its end"
        )
    if spend is None or amount is None:
        return None
    if not amount:
        spend.report_exact("no usage yet")
        return None
    if limits is None:
        spend.report_approximate("without a budget, nothing counts it; analytics begin with the import")
        return None
    if any(limits.get(name) for name in PERIOD_FIELDS):
        spend.report_approximate("initial_usage: counts in the first period, which begins with the import")
    else:
        spend.report_exact("initial_usage")
    return min(amount, MAX_CREDIT)


def _read_period(duration: Node) -> JsonObject:
    text = duration.text() or ""
    seconds = parse_duration(text)
    if seconds is None or seconds <= 0:
        duration.report_unsupported("must be a number with s, m, h, d, w or mo, such as 30d")
        return {}
    if text == "1mo":
        duration.report_exact("periodic_reset: monthly, on the first")
        return {"periodic_reset": "monthly"}
    days = min(max(1, round(seconds / DAY_SECONDS)), MAX_RESET_DAYS)
    if days * DAY_SECONDS == seconds:
        duration.report_exact("periodic_reset_days")
    else:
        duration.report_approximate("periodic_reset_days: whole days, from 1 to 365")
    return {"periodic_reset_days": days}


def read_rates(row: Node) -> list[JsonObject]:
    """Returns the rate limits that `rpm_limit` and `tpm_limit` of a row set."""
    json_objects: list[JsonObject] = []
    for name, kind in (("rpm_limit", "requests"), ("tpm_limit", "tokens")):
        field = row.child(name)
        number = field.number() if field else None
        if field and number is not None:
            field.report_exact("a rate limit for each minute")
            json_objects.append({"type": kind, "unit": "rpm", "value": int(min(number, MAX_RATE))})
    return json_objects
