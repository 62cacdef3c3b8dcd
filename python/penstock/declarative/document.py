"""Helpers for the declarative document: reports problems with their paths, resolves `${NAME}` references and compares
values.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.errors import Problem
from penstock.ids import MASK_TEXT, mask_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JsonObject = dict[str, Any]

ENV_REFERENCE_PATTERN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Fields of a policy that the gateway computes and no user sets.
COMPUTED_FIELDS = ("next_rotation_at", "next_usage_reset_at", "status")
# Fields that are compared literally, so that a value in clear text always differs from a stored mask and is sent. Not
# every masked value in them is a secret.
LITERAL_FIELDS = ("config",)
NO_STORED_VALUE = "is masked, and there is nothing yet that the mask could stand for; hint: ${NAME}"
MASK_MISMATCH = "is masked, and is not the mask of the stored value; hint: ${NAME}"


def resolve_references(path: str, value: object, environ: Mapping[str, str], problems: list[Problem]) -> object:
    """Replaces each `${NAME}` with the value of the environment variable. Appends a problem for each one that is not
    set.
    """
    if isinstance(value, dict):
        items = cast("JsonObject", value).items()
        return {name: resolve_references(f"{path}.{name}".lstrip("."), item, environ, problems) for name, item in items}
    if isinstance(value, list):
        listed = cast("list[object]", value)
        return [resolve_references(f"{path}[{index}]", item, environ, problems) for index, item in enumerate(listed)]
    if isinstance(value, str) and (reference := ENV_REFERENCE_PATTERN.fullmatch(value)):
        if variable := environ.get(reference[1]):
            return variable
        problems.append(Problem(path, f"the environment variable {reference[1]!r} is not set"))
    # YAML parses timestamps to `datetime`; JSON needs them as strings.
    return value.isoformat() if isinstance(value, datetime) else value


def find_unknown_fields(path: str, value: object, allowed: tuple[str, ...]) -> Iterator[Problem]:
    """Yields a problem for each field that is not allowed, or one if the value is not a mapping."""
    if not isinstance(value, dict):
        yield Problem(path, "must be a mapping")
        return
    for name in cast("JsonObject", value):
        if name not in allowed:
            yield Problem(f"{path}.{name}".lstrip("."), f"is not known; allowed: {', '.join(allowed)}")


def list_field(row: Mapping[str, Any], name: str) -> list[JsonObject]:
    """Returns a list field, or an empty list if it is missing."""
    return cast("list[JsonObject]", row.get(name) or [])


def omit_fields(row: Mapping[str, Any], *names: str) -> JsonObject:
    """Returns a copy without these fields."""
    return {name: value for name, value in row.items() if name not in names}


def omit_computed(limits: object) -> object:
    """Returns limits, or a policy, without the fields that the gateway computes."""
    if isinstance(limits, list):
        return [omit_computed(limit) for limit in cast("list[object]", limits)] or None
    return omit_fields(cast("JsonObject", limits), *COMPUTED_FIELDS) if isinstance(limits, dict) else limits


def diff_fields(desired: Mapping[str, Any], stored: Mapping[str, Any]) -> JsonObject:
    """Returns the fields of `desired` that differ from `stored`. Empty, null and missing values are equal, also inside
    a field.
    """
    return {name: value for name, value in desired.items() if _field_differs(name, value, stored.get(name))}


def _field_differs(name: str, desired: object, stored: object) -> bool:
    if name in LITERAL_FIELDS:
        return msgspec.json.encode(desired, order="sorted") != msgspec.json.encode(stored, order="sorted")
    return not _values_match(_normalise(desired), _normalise(stored))


def _normalise(value: object) -> object:
    if isinstance(value, dict):
        inner = {
            name: _normalise(item) for name, item in cast("JsonObject", value).items() if name not in COMPUTED_FIELDS
        }
        return {name: item for name, item in inner.items() if item not in (None, {}, [])} or None
    if isinstance(value, list):
        return [_normalise(item) for item in cast("list[object]", value)] or None
    return value or None if isinstance(value, str) else value


def _values_match(desired: object, stored: object) -> bool:
    """Returns true if the values are equal. The gateway returns only the mask of a stored credential, so masks are
    compared.
    """
    if isinstance(stored, str) and MASK_TEXT in stored:
        return desired == stored or (
            mask_secret(desired) == stored if isinstance(desired, str) else stored == MASK_TEXT
        )
    if isinstance(desired, dict) and isinstance(stored, dict):
        item, other = cast("JsonObject", desired), cast("JsonObject", stored)
        return item.keys() == other.keys() and all(_values_match(item[name], other[name]) for name in item)
    if isinstance(desired, list) and isinstance(stored, list):
        wanted_items, stored_items = cast("list[object]", desired), cast("list[object]", stored)
        return len(wanted_items) == len(stored_items) and all(map(_values_match, wanted_items, stored_items))
    if isinstance(desired, str) and isinstance(stored, str) and (moment := _parse_timestamp(desired)):
        return moment == _parse_timestamp(stored)
    return desired == stored


def _parse_timestamp(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def is_expired(resource: Mapping[str, Any]) -> bool:
    """Returns true if the expiry time of a resource is in the past."""
    end = _parse_timestamp(str(resource.get("expires_at") or ""))
    return end is not None and end <= datetime.now(UTC)


def find_unmatched_masks(path: str, desired: object, stored: object) -> Iterator[Problem]:
    """Yields a problem for each mask in the document that is not the mask of the stored credential."""
    if isinstance(desired, dict):
        counterparts = cast("JsonObject", stored) if isinstance(stored, dict) else {}
        for name, item in cast("JsonObject", desired).items():
            yield from find_unmatched_masks(f"{path}.{name}", item, counterparts.get(name))
    elif isinstance(desired, list):
        rows = cast("list[object]", stored) if isinstance(stored, list) else []
        for index, item in enumerate(cast("list[object]", desired)):
            # The list may be in another order, so the row at the same index is tried first, then all rows.
            candidates = rows[index : index + 1] + rows
            at = f"{path}[{index}]"
            counterparts = (row for row in candidates if next(find_unmatched_masks(at, item, row), None) is None)
            yield from find_unmatched_masks(at, item, next(counterparts, candidates[0] if candidates else None))
    elif isinstance(desired, str) and MASK_TEXT in desired and desired != stored:
        yield Problem(path, MASK_MISMATCH if stored else NO_STORED_VALUE)


def count_masks(value: object) -> int:
    """Counts the masked credentials in a document. The masks of API keys are not counted, because applying the document
    creates new keys in any case.
    """
    if isinstance(value, dict):
        return sum(count_masks(item) for name, item in cast("JsonObject", value).items() if name != "masked")
    if isinstance(value, list):
        return sum(map(count_masks, cast("list[object]", value)))
    return int(isinstance(value, str) and MASK_TEXT in value)


def find_match(
    resource: Mapping[str, Any], stored_rows: list[JsonObject], named_by: tuple[str, ...]
) -> JsonObject | None:
    """Returns the first stored resource that equals `resource` in one of the fields `named_by`, or `None`. Earlier
    fields take precedence.
    """
    for name in named_by:
        for row in stored_rows:
            if resource.get(name) is not None and row.get(name) == resource[name]:
                return row
    return None


def replace_ids_by_slugs(value: object, slug_by_id: Mapping[str, str]) -> object:
    """Replaces ids anywhere in a value with the slugs in `slug_by_id`."""
    if isinstance(value, dict):
        return {name: replace_ids_by_slugs(item, slug_by_id) for name, item in cast("JsonObject", value).items()}
    if isinstance(value, list):
        return [replace_ids_by_slugs(item, slug_by_id) for item in cast("list[object]", value)]
    return slug_by_id.get(value, value) if isinstance(value, str) else value
