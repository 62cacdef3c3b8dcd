"""What a written state says: checked with every place named, its `${NAME}` filled in, and compared with what is there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.errors import Problem
from penstock.ids import DOTS, mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Thing = dict[str, Any]

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What a policy says of itself and nobody chose.
DERIVED = ("next_rotation_at", "next_usage_reset_at", "status")
# Not all that is masked in these is secret, and all of it is the caller's own: what is written in clear is sent.
AS_WRITTEN = ("config",)
ALONE = "is masked, and there is nothing yet that it could stand for; hint: ${NAME}"
OTHERS = "is masked, and not the mask of what is there; hint: ${NAME}"


def resolved(path: str, value: object, environ: Mapping[str, str], problems: list[Problem]) -> object:
    """Put what the environment says in the place of `${NAME}`."""
    if isinstance(value, dict):
        items = cast("Thing", value).items()
        return {name: resolved(f"{path}.{name}".lstrip("."), item, environ, problems) for name, item in items}
    if isinstance(value, list):
        listed = cast("list[object]", value)
        return [resolved(f"{path}[{index}]", item, environ, problems) for index, item in enumerate(listed)]
    if isinstance(value, str) and (reference := REFERENCE.fullmatch(value)):
        if found := environ.get(reference[1]):
            return found
        problems.append(Problem(path, f"the environment variable {reference[1]!r} is not set"))
    # What YAML reads as a moment goes over the wire as text.
    return value.isoformat() if isinstance(value, datetime) else value


def unknown(path: str, value: object, allowed: tuple[str, ...]) -> Iterator[Problem]:
    """Tell what a table should not hold, or that it is none."""
    if not isinstance(value, dict):
        yield Problem(path, "must be a mapping")
        return
    for name in cast("Thing", value):
        if name not in allowed:
            yield Problem(f"{path}.{name}".lstrip("."), f"is not known; allowed: {', '.join(allowed)}")


def listed(row: Mapping[str, Any], name: str) -> list[Thing]:
    """Give a list that may be left out."""
    return cast("list[Thing]", row.get(name) or [])


def without(row: Mapping[str, Any], *names: str) -> Thing:
    """Leave fields out."""
    return {name: value for name, value in row.items() if name not in names}


def bare(limits: object) -> object:
    """Leave out of limits, or of a policy, what they say of themselves."""
    if isinstance(limits, list):
        return [bare(limit) for limit in cast("list[object]", limits)] or None
    return without(cast("Thing", limits), *DERIVED) if isinstance(limits, dict) else limits


def changes(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> Thing:
    """Give what differs; nothing and null are the same, and so is what was left out within a field."""
    return {name: value for name, value in wanted.items() if _differs(name, value, there.get(name))}


def _differs(name: str, wanted: object, there: object) -> bool:
    if name in AS_WRITTEN:
        return msgspec.json.encode(wanted, order="sorted") != msgspec.json.encode(there, order="sorted")
    return not _same(_plain(wanted), _plain(there))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        inner = {name: _plain(item) for name, item in cast("Thing", value).items() if name not in DERIVED}
        return {name: item for name, item in inner.items() if item not in (None, {}, [])} or None
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[object]", value)] or None
    return value or None if isinstance(value, str) else value


def _same(wanted: object, there: object) -> bool:
    """Whether nothing needs to be done: of a credential that is there only the mask is known."""
    if isinstance(there, str) and DOTS in there:
        return wanted == there or (mask(wanted) == there if isinstance(wanted, str) else there == DOTS)
    if isinstance(wanted, dict) and isinstance(there, dict):
        one, other = cast("Thing", wanted), cast("Thing", there)
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(wanted, list) and isinstance(there, list):
        ours, theirs = cast("list[object]", wanted), cast("list[object]", there)
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(wanted, str) and isinstance(there, str) and (moment := _moment(wanted)):
        return moment == _moment(there)
    return wanted == there


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def is_over(thing: Mapping[str, Any]) -> bool:
    """Whether its end has come, so that nobody needs it any more."""
    end = _moment(str(thing.get("expires_at") or ""))
    return end is not None and end <= datetime.now(UTC)


def strangers(path: str, wanted: object, there: object) -> Iterator[Problem]:
    """Tell each masked credential that stands for nothing that is there."""
    if isinstance(wanted, dict):
        known = cast("Thing", there) if isinstance(there, dict) else {}
        for name, item in cast("Thing", wanted).items():
            yield from strangers(f"{path}.{name}", item, known.get(name))
    elif isinstance(wanted, list):
        rows = cast("list[object]", there) if isinstance(there, list) else []
        for index, item in enumerate(cast("list[object]", wanted)):
            # They may have changed places.
            here = rows[index : index + 1] + rows
            at = f"{path}[{index}]"
            known = (row for row in here if next(strangers(at, item, row), None) is None)
            yield from strangers(at, item, next(known, here[0] if here else None))
    elif isinstance(wanted, str) and DOTS in wanted and wanted != there:
        yield Problem(path, OTHERS if there else ALONE)


def masks(value: object) -> int:
    """Count the credentials that stand as masks; those of keys are made anew in any case."""
    if isinstance(value, dict):
        return sum(masks(item) for name, item in cast("Thing", value).items() if name != "masked")
    if isinstance(value, list):
        return sum(map(masks, cast("list[object]", value)))
    return int(isinstance(value, str) and DOTS in value)


def match(thing: Mapping[str, Any], there: list[Thing], named_by: tuple[str, ...]) -> Thing | None:
    """Find what a thing is called; of several with one name the first that is left."""
    for name in named_by:
        for row in there:
            if thing.get(name) is not None and row.get(name) == thing[name]:
                return row
    return None


def renamed(value: object, names: Mapping[str, str]) -> object:
    """Put slugs that things were given in the place of those that are written."""
    if isinstance(value, dict):
        return {name: renamed(item, names) for name, item in cast("Thing", value).items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in cast("list[object]", value)]
    return names.get(value, value) if isinstance(value, str) else value
