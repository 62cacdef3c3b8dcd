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

# `publishes` is false: guardrails are published with these credentials, so only the sections of guardrails change.
PARTNER_CREDENTIALS = Resource("partner_credentials", table, unlisted=frozenset({"sealed"}))
# Maximum number of guardrails that an error names.
MAX_NAMED_GUARDRAILS = 10
# Path of an error in the parameters `credentials` and `baseURL`, as the engine reports it.
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


async def restore_credentials(
    session: TenantSession, row: Mapping[str, Any], credentials: JsonObject, base_url: str | None
) -> JsonObject:
    """Returns the parameters `credentials` and `baseURL`, with the stored credentials of `row` in place of masks."""
    before = SplitDocument([], {})
    if row.get("sealed"):
        opened = config_credentials.decode_secrets(await session.open(row["sealed"], row["id"]))
        before = SplitDocument([partner_credentials.to_check(row)], opened)
    return restore_masks(row["slug"], credentials, base_url, before)


def restore_masks(
    partner: str, credentials: JsonObject, base_url: str | None, before: SplitDocument | None = None
) -> JsonObject:
    """Returns the parameters `credentials` and `baseURL`, with the stored credentials in `before` in place of masks."""
    sent = partner_credentials.to_check({"slug": partner, "credentials": credentials, "base_url": base_url})
    try:
        restored = guardrail_credentials.restore_masks([sent], before or SplitDocument([], {}))
    except InvalidError as error:
        raise _body_error(error.problems) from None
    return restored[0][PARAMETERS]


async def seal_parameters(session: TenantSession, row: Mapping[str, Any], parameters: JsonObject) -> dict[str, Any]:
    """Returns the column values of credentials."""
    check = partner_credentials.to_check(
        {"slug": row["slug"], "credentials": parameters[CREDENTIALS], "base_url": None}
    )
    check[PARAMETERS] = parameters
    divided = guardrail_credentials.split_credentials([check])
    return {
        "credentials": divided.masked[0][PARAMETERS][CREDENTIALS],
        # The URL is masked if it contains a secret, which is then stored in `sealed`.
        "base_url": divided.masked[0][PARAMETERS].get(BASE_URL),
        "sealed": await session.seal(config_credentials.encode_secrets(divided.secrets), row["id"]),
    }


class CheckValidator:
    """Validates checks in the engine, each once. A route validates before its transaction, because other changes of the
    organisation wait while that is open. In the transaction it validates again what has changed meanwhile.
    """

    def __init__(self) -> None:
        """Starts without any valid check."""
        self._valid: set[bytes] = set()

    async def find_problems(self, checks: Sequence[JsonObject]) -> list[Problem]:
        """Returns the problems of checks that have not been found valid yet."""
        by_content = {msgspec.json.encode((check["id"], check[PARAMETERS]), order="sorted"): check for check in checks}
        new = {content: check for content, check in by_content.items() if content not in self._valid}
        problems = await _find_problems(list(new.values())) if new else []
        if not problems:
            self._valid |= new.keys()
        return problems


async def reject_unusable(partner: str, parameters: JsonObject, validator: CheckValidator) -> None:
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
    # Ignores problems of other parameters: these are part of a guardrail, not of the credentials.
    engine_problems = await validator.find_problems(checks)
    problems += [problem for problem in engine_problems if ENGINE_PATH.match(problem.path)]
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
    """Returns the error for these problems, without duplicates and with the paths of the request body."""
    located = [Problem(ENGINE_PATH.sub(_to_body_path, problem.path), problem.message) for problem in problems]
    unique = list(dict.fromkeys(located))
    return InvalidError(join_problems(unique), unique)


def _to_body_path(match: re.Match[str]) -> str:
    return f"{BODY_NAMES[match[1]]}{match[2]}"


async def find_users(session: TenantSession, partner: str) -> list[Row]:
    """Returns the guardrails of the organisation and of its workspaces that use the credentials of a partner."""
    columns = (guardrails.c.id, guardrails.c.slug, guardrails.c.workspace_id, guardrails.c.checks)
    # A coarse filter in SQL, by the ids of the checks. The checks themselves are read below.
    is_mentioned = cast(guardrails.c.checks, Text).contains(f'"{partner}.', autoescape=True)
    query = select(*columns).where(is_mentioned).order_by(guardrails.c.slug)
    rows = await session.organisation().fetch_rows(query, guardrails)
    return [row for row in rows if partner in partner_credentials.find_partners(row["checks"])]


def reject_removed_access(row: Row, users: Sequence[Row]) -> None:
    """Raises ConflictError if a guardrail that uses credentials may no longer do so. `row` has the new values."""
    without_access = [user["slug"] for user in users if not may_use_secret(row, user["workspace_id"])]
    if without_access:
        raise ConflictError(
            f"guardrails use these credentials and would lose access to them: {_name_some(without_access)}"
        )


async def reject_unsuitable(
    partner: str, parameters: JsonObject, users: Sequence[Row], validator: CheckValidator
) -> None:
    """Rejects changed credentials that do not suit the guardrails that use them."""
    for user in users:
        checks = [check for check in user["checks"] if partner_credentials.find_partner(check) == partner]
        filled = partner_credentials.fill_credentials(checks, {partner: parameters})
        if problems := await validator.find_problems(filled):
            reasons = join_problems([Problem("", problem.message) for problem in problems])
            raise field_error(CREDENTIALS, f"do not suit the guardrail {user['slug']!r}, which uses them: {reasons}")


async def publish_users(session: TenantSession, users: Sequence[Row]) -> None:
    """Publishes guardrails with the changed credentials that they use."""
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
