"""Budgets and rates of LiteLLM's users, team members and end users as policies on `metadata._user`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.imports.litellm_limits import read_budget, read_rates, read_spend

if TYPE_CHECKING:
    from penstock.imports.findings import Node

JsonObject = dict[str, Any]

MAX_POLICIES = 200
# Names of rate limits policies end in the type.
NAME_ENDINGS = ("", " requests", " tokens")
# `MAX_NAME_CHARS` is below the 255 characters of a policy name, because the type is appended to some names.
MAX_NAME_CHARS, MAX_VALUE_CHARS, MAX_GROUP_BYTES = 240, 512, 256
LIMIT_FIELDS = ("max_budget", "tpm_limit", "rpm_limit")
BUDGET_FIELDS = (*LIMIT_FIELDS, "soft_budget", "budget_duration")


def add_user_policies(workspace: JsonObject, row: Node, limits_row: Node, user: str, title: str) -> None:
    """Adds the policies of one user to a workspace. `limits_row` is the row with the limits: that of the user, or that
    of a budget. `user` is the value of `metadata._user`. The names of the policies begin with `title`, a kind of user.
    """
    usage, rates = workspace["usage_limits_policies"], workspace["rate_limits_policies"]
    limits = [field for name in LIMIT_FIELDS if (field := limits_row.child(name))]
    obstacle = _find_obstacle(user, len(usage) + len(rates) + len(limits))
    if limits and obstacle:
        for name in BUDGET_FIELDS:
            if field := limits_row.child(name):
                field.report_manual(f"{obstacle}; set the limits of the keys")
        limits = []
        read_spend(row, None)
    else:
        _add_policies(usage, rates, (row, limits_row), user, title)
    if limits_row is not row:
        read_budget(row)
    for field in limits:
        field.report_approximate(
            f"a policy on metadata._user of keys of {workspace['slug']}; a request may send another user"
        )


def _find_obstacle(user: str, policy_count: int) -> str | None:
    """Returns why there can be no policies for the user. `policy_count` includes them."""
    if policy_count > MAX_POLICIES:
        return f"a workspace has at most {MAX_POLICIES} policies"
    if "*" in user:
        return "the name of the user contains *, which matches other users in a condition"
    if len(user) > MAX_VALUE_CHARS:
        return f"the name of the user is longer than {MAX_VALUE_CHARS} characters"
    return None


def _add_policies(
    usage: list[JsonObject], rates: list[JsonObject], rows: tuple[Node, Node], user: str, title: str
) -> None:
    row, limits_row = rows
    name = _unused_name([*usage, *rates], f"{title} {user}")
    common = {
        "conditions": [{"key": "metadata._user", "value": user}],
        "group_by": [{"key": "metadata._user"}],
    }
    budget = read_budget(limits_row)
    spent = read_spend(row, budget)
    if budget:
        usage.append({"name": name, **common, **budget})
    if spent and len(user.encode()) <= MAX_GROUP_BYTES:
        usage[-1]["initial_usage"] = {user: spent}
    elif spent and (field := row.child("spend")):
        field.report_manual(f"the name of the user is longer than {MAX_GROUP_BYTES} bytes, so its usage begins at zero")
    rates.extend({"name": f"{name} {rate['type']}", **common, **rate} for rate in read_rates(limits_row))


def _unused_name(policies: list[JsonObject], name: str) -> str:
    """Returns a name for the policies of a user that no policy has. Two users may have the same e-mail address."""
    number, unused = 1, name[:MAX_NAME_CHARS]
    names = {policy["name"] for policy in policies}
    while not names.isdisjoint(unused + ending for ending in NAME_ENDINGS):
        number += 1
        unused = f"{name[: MAX_NAME_CHARS - 5]} ({number})"
    return unused
