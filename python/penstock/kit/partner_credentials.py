"""Credentials of guardrail partners that an organisation holds: their validation, storage, and the guardrails that use
them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Text, cast, select

from penstock import engine
from penstock.errors import ConflictError, InvalidError, Problem, join_problems
from penstock.kit.engine_validation import MAX_VALIDATION_SECONDS, check_in_engine
from penstock.kit.resource import Resource
from penstock.schemas import field_error
from penstock.secrets import config_credentials, guardrail_credentials, partner_credentials
from penstock.secrets.config_credentials import SplitDocument
from penstock.secrets.guardrail_credentials import PARAMETERS
from penstock.secrets.mappings import may_use_secret
from penstock.secrets.partner_credentials import BASE_URL, CREDENTIALS
from penstock.similar_names import describe_unknown
from penstock.store.guardrail_tables import guardrails
from penstock.store.guardrail_tables import partner_credentials as table
from penstock.store.snapshot_sections import section_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

    JsonObject = dict[str, Any]

# Guardrails are published with them, so only the sections of guardrails change.
PARTNER_CREDENTIALS = Resource("partner_credentials", table, unlisted=frozenset({"sealed"}))
# Guardrails that an error names.
MAX_NAMED_GUARDRAILS = 10
# Where the engine reports a problem of credentials, and where the body of the request has them.
ENGINE_PATH = re.compile(rf"^\$?\.?checks\[\d+\]\.{PARAMETERS}\.({CREDENTIALS}|{BASE_URL})(.*)$")
BODY_NAMES = {CREDENTIALS: CREDENTIALS, BASE_URL: "base_url"}


async def load_shared(
    session: TenantSession, workspace_id: str | None, checks: Sequence[JsonObject]
) -> dict[str, JsonObject]:
    """Returns the credentials that checks of a workspace's guardrail need, by partner. Without a workspace, the
    guardrail is one of the organisation.
    """
    needed = partner_credentials.find_partners(checks)
    if not needed:
        return {}
    rows = await session.organisation().fetch_rows(select(table).where(table.c.slug.in_(sorted(needed))), table)
    return {
        row["slug"]: partner_credentials.open_parameters(row, await session.open(row["sealed"], row["id"]))
        for row in rows
        if may_use_secret(row, workspace_id)
    }


async def reject_missing(session: TenantSession, workspace_id: str | None, checks: Sequence[JsonObject]) -> None:
    """Raises InvalidError if a check has no credentials, and the organisation has none for it."""
    shared = await load_shared(session, workspace_id, checks)
    if reasons := partner_credentials.explain_missing(checks, shared):
        problems = [Problem(path, reason) for path, reason in reasons.items()]
        raise InvalidError(join_problems(problems), problems)


def reject_unknown_partner(partner: str) -> None:
    """Raises InvalidError if no check of this partner takes credentials."""
    known = sorted(partner_credentials.checks_by_partner())
    if partner not in known:
        raise field_error("partner", f"{partner!r} {describe_unknown(partner, known)}")


async def seal_credentials(
    session: TenantSession, row: Mapping[str, Any], credentials: JsonObject, base_url: str | None
) -> dict[str, Any]:
    """Validates credentials, and returns the column values. Masks stand for the stored credentials of `row`."""
    before = SplitDocument([], {})
    if row.get("sealed"):
        opened = config_credentials.decode_secrets(await session.open(row["sealed"], row["id"]))
        before = SplitDocument([partner_credentials.to_check(row)], opened)
    sent = partner_credentials.to_check({**row, "credentials": credentials, "base_url": base_url})
    try:
        restored = guardrail_credentials.restore_masks([sent], before)
    except InvalidError as error:
        raise _body_error(error.problems) from None
    await _validate(row["slug"], restored[0][PARAMETERS])
    divided = guardrail_credentials.split_credentials(restored)
    return {
        "credentials": divided.masked[0][PARAMETERS][CREDENTIALS],
        # Masked if it has a secret, which is then in `sealed`.
        "base_url": divided.masked[0][PARAMETERS].get(BASE_URL),
        "sealed": await session.seal(config_credentials.encode_secrets(divided.secrets), row["id"]),
    }


async def _validate(partner: str, parameters: JsonObject) -> None:
    """Rejects credentials that no check of the partner can use."""
    ids = partner_credentials.checks_by_partner()[partner]
    sent: JsonObject = parameters[CREDENTIALS]
    needs = {check_id: partner_credentials.credential_names(check_id) for check_id in ids}
    known = sorted({name for names in needs.values() for name in names})
    problems = [
        Problem(f"{CREDENTIALS}.{name}", f"{name!r} {describe_unknown(name, known)}")
        for name in sorted(sent.keys() - set(known))
    ]
    required = {
        check_id: [name for name, is_required in names.items() if is_required] for check_id, names in needs.items()
    }
    usable = [check_id for check_id, names in required.items() if sent.keys() >= set(names)]
    if not usable:
        options = dict.fromkeys(" and ".join(map(repr, names)) for names in required.values())
        problems.append(Problem(CREDENTIALS, f"lacks what the checks of {partner!r} need: {' or '.join(options)}"))
    checks = [partner_credentials.sample_check(check_id, parameters) for check_id in usable]
    # Problems of other parameters are those of the guardrails.
    problems += [problem for problem in await _find_problems(checks) if ENGINE_PATH.match(problem.path)]
    if problems:
        raise _body_error(problems)


async def _find_problems(checks: list[JsonObject]) -> list[Problem]:
    try:
        await check_in_engine("guardrail", {"checks": checks, "actions": {}})
    except TimeoutError:
        message = f"take longer than {MAX_VALIDATION_SECONDS} s to validate; try again"
        return [Problem(f"checks[0].{PARAMETERS}.{CREDENTIALS}", message)]
    except engine.EngineError as error:
        return [Problem(problem["path"], problem["message"]) for problem in error.problems]
    return []


def _body_error(problems: Sequence[Problem]) -> InvalidError:
    """Returns the error with the paths of the request, each problem once."""
    located = [Problem(ENGINE_PATH.sub(_to_body_path, problem.path), problem.message) for problem in problems]
    unique = list(dict.fromkeys(located))
    return InvalidError(join_problems(unique), unique)


def _to_body_path(match: re.Match[str]) -> str:
    return f"{BODY_NAMES[match[1]]}{match[2]}"


async def find_users(session: TenantSession, partner: str) -> list[Row]:
    """Returns the guardrails of the organisation and of its workspaces that use the credentials of a partner."""
    columns = (guardrails.c.id, guardrails.c.slug, guardrails.c.workspace_id, guardrails.c.checks)
    # A quick choice by the ids of the checks; their content is read below.
    is_mentioned = cast(guardrails.c.checks, Text).contains(f'"{partner}.', autoescape=True)
    query = select(*columns).where(is_mentioned).order_by(guardrails.c.slug)
    rows = await session.organisation().fetch_rows(query, guardrails)
    return [row for row in rows if partner in partner_credentials.find_partners(row["checks"])]


async def update_users(session: TenantSession, row: Row) -> None:
    """Checks that changed credentials suit the guardrails that use them, and publishes these guardrails. `row` has the
    new values.
    """
    users = await find_users(session, row["slug"])
    lost = [user["slug"] for user in users if not may_use_secret(row, user["workspace_id"])]
    if lost:
        raise ConflictError(f"guardrails use these credentials and would lose access to them: {_name_some(lost)}")
    shared = {row["slug"]: partner_credentials.open_parameters(row, await session.open(row["sealed"], row["id"]))}
    validated: set[bytes] = set()
    for user in users:
        checks = [check for check in user["checks"] if partner_credentials.find_partner(check) == row["slug"]]
        filled = partner_credentials.fill_credentials(checks, shared)
        # Many guardrails have the same check, and this transaction blocks other changes of the organisation.
        by_content = {msgspec.json.encode((check["id"], check[PARAMETERS]), order="sorted"): check for check in filled}
        new = [check for content, check in by_content.items() if content not in validated]
        validated |= by_content.keys()
        if new and (problems := await _find_problems(new)):
            reasons = join_problems([Problem("", problem.message) for problem in problems])
            raise field_error(CREDENTIALS, f"do not suit the guardrail {user['slug']!r}, which uses them: {reasons}")
    if users:
        await session.mark_changed(*(section_name(guardrails, user["id"]) for user in users))


async def reject_if_used(session: TenantSession, partner: str) -> None:
    """Raises ConflictError if a guardrail uses the credentials of a partner."""
    if users := await find_users(session, partner):
        names = _name_some([user["slug"] for user in users])
        raise ConflictError(f"guardrails use the credentials of {partner!r}; give them credentials first: {names}")


def _name_some(slugs: Sequence[str]) -> str:
    names = ", ".join(map(repr, slugs[:MAX_NAMED_GUARDRAILS]))
    more = len(slugs) - MAX_NAMED_GUARDRAILS
    return f"{names} and {more} more" if more > 0 else names
