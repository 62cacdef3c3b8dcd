"""Budgets and rates of LiteLLM's users, team members and end users as policies on `metadata._user`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.imports.litellm_limits import read_budget, read_rates, read_spend

if TYPE_CHECKING:
    from penstock.imports.findings import Node

JsonObject = dict[str, Any]

MAX_POLICIES = 200
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
    if len(usage) + len(rates) + len(limits) > MAX_POLICIES:
        for name in BUDGET_FIELDS:
            if field := limits_row.child(name):
                field.manual(f"a workspace has at most {MAX_POLICIES} policies; set the limits of the keys")
        limits = []
        read_spend(row, None)
    else:
        _add_policies(usage, rates, (row, limits_row), user, title)
    if limits_row is not row:
        read_budget(row)
    for field in limits:
        field.approximate(f"a policy on metadata._user of keys of {workspace['slug']}; a request may send another user")


def _add_policies(
    usage: list[JsonObject], rates: list[JsonObject], rows: tuple[Node, Node], user: str, title: str
) -> None:
    row, limits_row = rows
    name = _unused_name([*usage, *rates], f"{title} {user}")
    common = {
        "conditions": [{"key": "metadata._user", "value": user[:MAX_VALUE_CHARS]}],
        "group_by": [{"key": "metadata._user"}],
    }
    budget = read_budget(limits_row)
    spent = read_spend(row, budget)
    if budget:
        usage.append({"name": name, **common, **budget})
    if spent and len(user.encode()) <= MAX_GROUP_BYTES:
        usage[-1]["initial_usage"] = {user: spent}
    elif spent and (field := row.child("spend")):
        field.manual(f"the name of the user is longer than {MAX_GROUP_BYTES} bytes, so its usage begins at zero")
    rates.extend({"name": f"{name} {rate['type']}", **common, **rate} for rate in read_rates(limits_row))


def _unused_name(policies: list[JsonObject], name: str) -> str:
    """Returns a name that no policy begins with. Two users may have the same e-mail address."""
    number, unused = 1, name[:MAX_NAME_CHARS]
    while any(policy["name"].startswith(unused) for policy in policies):
        number += 1
        unused = f"{name[: MAX_NAME_CHARS - 5]} ({number})"
    return unused
