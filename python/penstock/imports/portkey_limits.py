"""Limits of Portkey's objects, which have the same form in this gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.limit_fields import USAGE_FIELDS, RateLimit, UsageLimits, find_usage_limit_problems

if TYPE_CHECKING:
    from penstock.imports.findings import Node

JsonObject = dict[str, Any]


def read_usage_limits(field: Node) -> JsonObject | None:
    """Returns the usage limits of an object; `None` if it has none, or if this gateway does not allow them."""
    part = next(field.items(), None) if field.is_list else field
    if part is None or not part.is_mapping:
        field.report_exact("no limits")
        return None
    present = {name: value for name, value in part.value.items() if name in USAGE_FIELDS and value is not None}
    present.pop("next_usage_reset_at", None)
    try:
        limits = msgspec.convert(present, UsageLimits)
    except msgspec.ValidationError:
        field.report_manual("are not allowed here; set usage_limits")
        return None
    if find_usage_limit_problems("", limits, {}):
        field.report_manual("are not allowed here; set usage_limits")
        return None
    field.report_exact("usage is counted from the import on")
    return present


def read_rate_limits(field: Node) -> list[JsonObject] | None:
    """Returns the rate limits of an object that this gateway allows; `None` if there are none."""
    json_objects: list[JsonObject] = []
    for item in field.items() if field.is_list else [field]:
        try:
            msgspec.convert(item.value, RateLimit)
        except msgspec.ValidationError:
            item.report_manual("is not allowed here; set rate_limits")
            continue
        item.report_exact()
        json_objects.append(item.value)
    return json_objects or None
