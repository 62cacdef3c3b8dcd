"""Guardrails: their checks and actions, how they are validated and stored, and who may use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.authorization import RequireScopes, require_scopes
from penstock.errors import ForbiddenError, InvalidError, Problem, join_problems
from penstock.guardrails.default_models import may_use_default_model
from penstock.guardrails.documents import JsonObject, to_engine_document
from penstock.ids import new_id
from penstock.kit import versions as saved_versions
from penstock.kit.engine_validation import validate_document
from penstock.kit.numbered_pages import PageRequest
from penstock.kit.resource import Resource
from penstock.schemas import field_error
from penstock.secrets import config_credentials, guardrail_credentials, partner_credentials
from penstock.secrets.config_credentials import SplitDocument
from penstock.secrets.partner_credentials import SharedCredentials
from penstock.store.guardrail_tables import guardrails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

GUARDRAILS = Resource("guardrails", guardrails, publishes=True, unlisted=frozenset({"checks", "actions", "sealed"}))
MAX_CHECKS = 50
MAX_CREDENTIALS = 1000
# Maximum number of recent versions in which the credential behind a mask is searched.
MAX_SEARCHED_VERSIONS = 50
# Stored checks of a guardrail that is not saved yet.
NO_CHECKS = SplitDocument([], {})

_Metadata = Annotated[dict[str, Any], Meta(max_length=64)]
_Rating = Annotated[float, Meta(ge=-10, le=10)]
_Weight = Annotated[float, Meta(ge=0, le=1)]


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A check of a guardrail."""

    id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            description="id of the check, such as `default.wordCount`; `GET /v1/guardrails/checks` lists all",
        ),
    ]
    parameters: Annotated[dict[str, Any], Meta(description="its parameters; credentials are stored encrypted")] = {}
    name: Annotated[Annotated[str, Meta(max_length=255)] | None, Meta(description="display name")] = None
    is_enabled: Annotated[bool, Meta(description="false: the check is skipped")] = True
    soft_deny_200: Annotated[
        bool, Meta(description="true: a denial is a response with status 200 that has its message as content")
    ] = False


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Feedback on a request that passed or failed."""

    value: Annotated[_Rating, Meta(description="rating, from -10 to 10; default: 5 on success, -5 on failure")]
    weight: Annotated[_Weight, Meta(description="weight of the rating, from 0 to 1")] = 1.0
    metadata: Annotated[
        _Metadata | str | None, Meta(description="further information, as an object or as an object in a JSON string")
    ] = None


class SuccessFeedback(Feedback, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Feedback on a request that passed all checks."""

    value: Annotated[_Rating, Meta(description="rating, from -10 to 10")] = 5


class FailureFeedback(Feedback, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Feedback on a request that failed a check."""

    value: Annotated[_Rating, Meta(description="rating, from -10 to 10")] = -5


class SuccessAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens if all checks pass."""

    feedback: Annotated[SuccessFeedback, Meta(description="feedback that the results contain")] = msgspec.field(
        default_factory=SuccessFeedback
    )


class FailureAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens if a check fails."""

    feedback: Annotated[FailureFeedback, Meta(description="feedback that the results contain")] = msgspec.field(
        default_factory=FailureFeedback
    )


StreamMode = Literal["hold", "window", "end"]


class Actions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a guardrail runs, and what follows from its result."""

    deny: Annotated[bool, Meta(description="true: a request or response that fails a check is rejected")] = False
    is_async: Annotated[bool, Meta(description="true: the checks run asynchronously and never change the response")] = (
        msgspec.field(name="async", default=False)
    )
    sequential: Annotated[bool, Meta(description="true: the checks run one by one, in their order")] = False
    dry_run: Annotated[
        bool, Meta(description="true: the guardrail only reports, in logs and metrics; it denies and changes nothing")
    ] = False
    stream: Annotated[
        StreamMode | UnsetType,
        Meta(description="`hold`, `window` or `end`: when a stream is checked; see guardrail-streams.md"),
    ] = UNSET
    on_success: Annotated[SuccessAction, Meta(description="what happens if all checks pass")] = msgspec.field(
        default_factory=SuccessAction
    )
    on_fail: Annotated[FailureAction, Meta(description="what happens if a check fails")] = msgspec.field(
        default_factory=FailureAction
    )


ChecksField = Annotated[
    list[Check], Meta(min_length=1, max_length=MAX_CHECKS, description=f"its checks, at most {MAX_CHECKS}")
]
ActionsField = Annotated[Actions, Meta(description="how it runs, and what follows from its result")]
_Checks = Annotated[list[Check], Meta(min_length=1, max_length=MAX_CHECKS)]
OptionalChecks = Annotated[
    _Checks | UnsetType,
    Meta(
        description="its checks, which replace the previous ones; credentials that are sent back masked are unchanged"
    ),
]
OptionalActions = Annotated[
    Actions | UnsetType, Meta(description="how it runs; omitted fields of it get their defaults")
]


class Content(msgspec.Struct, frozen=True):
    """Checks and actions of a guardrail in their stored form: the credentials are separate from the checks."""

    checks: SplitDocument
    actions: JsonObject

    def is_same(self, other: Content) -> bool:
        """Returns true if both contents are the same, so that a new version would only repeat the other one."""
        same_actions = msgspec.json.encode(self.actions) == msgspec.json.encode(other.actions)
        return same_actions and config_credentials.is_same_document(self.checks, other.checks)


def require_either_scope(verb: str) -> RequireScopes:
    """Returns a guard that accepts a caller with the scope for workspaces or for the organisation. The route later
    checks which of them the row requires.
    """
    return require_scopes(scope_for_verb(None, verb), scope_for_verb("some", verb))


def scope_for_verb(workspace_id: str | None, verb: str) -> str:
    """Returns the scope that a verb needs, for a guardrail of the organisation or of one workspace."""
    return f"{'guardrails' if workspace_id else 'organisation_guardrails'}.{verb}"


async def get_guardrail(session: TenantSession, key: str, verb: str) -> Row:
    """Returns a guardrail; raises NotFoundError if it is missing, and ForbiddenError if the caller lacks the scope of
    the verb.
    """
    row = await GUARDRAILS.get(session, key)
    session.require_any_scope(scope_for_verb(row["workspace_id"], verb))
    return row


def choose_owner(session: TenantSession, organisation_id: str | None) -> str | None:
    """Returns the id of the workspace that owns a new guardrail, or `None` if the organisation does."""
    if organisation_id is None:
        if session.workspace_id is None:
            message = "is required with a key that is not bound to a workspace; or send organisation_id"
            raise field_error("workspace_id", message)
        return session.workspace_id
    session.caller.check_organisation(organisation_id)
    if session.workspace_id is not None:
        message = "guardrails of the organisation need a key of the organisation, not one of a workspace"
        raise ForbiddenError(message)
    return None


def checks_to_builtins(checks: Sequence[Check]) -> list[JsonObject]:
    """Returns checks as JSON objects."""
    return [msgspec.to_builtins(check) for check in checks]


def actions_to_builtins(actions: Actions) -> JsonObject:
    """Returns actions as a JSON object with all fields. Metadata in a JSON string becomes an object."""
    written: JsonObject = msgspec.to_builtins(actions)
    for event in ("on_success", "on_fail"):
        feedback = written[event]["feedback"]
        # Written as an integer if it is one, so that the same rating makes no new version.
        if float(feedback["value"]).is_integer():
            feedback["value"] = int(feedback["value"])
        feedback["metadata"] = _parse_metadata(f"actions.{event}.feedback.metadata", feedback["metadata"])
    return written


def _parse_metadata(path: str, metadata: JsonObject | str | None) -> JsonObject:
    if not isinstance(metadata, str):
        return metadata or {}
    try:
        return msgspec.json.decode(metadata, type=_Metadata) if metadata else {}
    except (msgspec.MsgspecError, RecursionError):
        raise field_error(path, "is not allowed: expected an object, or an object in a JSON string") from None


class Draft(msgspec.Struct, frozen=True):
    """Checks with their credentials, actions, and the credentials of the organisation that the checks need. The
    organisation's credentials are used for the validation, and not stored with the checks.
    """

    checks: list[JsonObject]
    actions: JsonObject
    shared: SharedCredentials

    def to_document(self) -> JsonObject:
        """Returns the document that the engine validates."""
        return to_engine_document(partner_credentials.fill_credentials(self.checks, self.shared), self.actions)

    async def validate(self) -> None:
        """Raises InvalidError with all problems."""
        try:
            await validate_document("guardrail", self.to_document())
        except InvalidError as error:
            reasons = partner_credentials.explain_missing(self.checks, self.shared)
            if not reasons:
                raise
            problems = [Problem(problem.path, reasons.get(problem.path, problem.message)) for problem in error.problems]
            raise InvalidError(join_problems(problems), problems) from None

    async def validate_actions(self) -> None:
        """Raises InvalidError if the checks cannot run with these actions. Other problems of the checks do not matter,
        because they are stored already: a guardrail whose plug-in is missing can still be switched off.
        """
        try:
            await self.validate()
        except InvalidError as error:
            problems = [problem for problem in error.problems if not problem.path.startswith("checks")]
            if problems:
                raise InvalidError(join_problems(problems), problems) from None

    def to_content(self) -> Content:
        """Returns the content to store."""
        divided = guardrail_credentials.split_credentials(self.checks)
        if (count := len(divided.secrets)) > MAX_CREDENTIALS:
            raise field_error("checks", f"must hold at most {MAX_CREDENTIALS} credentials, not {count}")
        return Content(divided, self.actions)


async def make_content(
    checks: list[JsonObject], actions: JsonObject, shared: SharedCredentials | None = None
) -> Content:
    """Validates the checks and actions of a new guardrail."""
    draft = Draft(guardrail_credentials.restore_masks(checks, NO_CHECKS), actions, shared or {})
    await draft.validate()
    return draft.to_content()


def asks_models(content: Content) -> bool:
    """Returns true if an enabled check sends requests to a model of a saved provider."""
    enabled = [check for check in content.checks.masked if check.get("is_enabled", True)]
    return any("model" in check["parameters"] or may_use_default_model(check) for check in enabled)


async def open_content(session: TenantSession, content: Row, holder: Row) -> Content:
    """Returns the content of a guardrail or of one of its versions, with its credentials, which the row `holder` has
    encrypted in `sealed`.
    """
    sealed = holder["sealed"]
    secrets = config_credentials.decode_secrets(await session.open(sealed, holder["id"])) if sealed else {}
    return Content(SplitDocument(content["checks"], secrets), content["actions"])


def complete_content(content: Content, shared: SharedCredentials) -> Content:
    """Returns the content with all credentials in clear text, for a trial. The result must not be stored."""
    checks = config_credentials.join_credentials(content.checks)
    return Content(SplitDocument(partner_credentials.fill_credentials(checks, shared), {}), content.actions)


async def seal_content(session: TenantSession, owner: str, content: Content) -> dict[str, Any]:
    """Returns the column values of a guardrail, with its credentials encrypted."""
    hidden = config_credentials.encode_secrets(content.checks.secrets)
    return {
        "checks": content.checks.masked,
        "actions": content.actions,
        "sealed": await session.seal(hidden, owner) if content.checks.secrets else None,
        "version_id": new_id(),
    }


async def save_version(session: TenantSession, row: Row, content: Content) -> None:
    """Stores the content of a guardrail as a version with the id in the row's `version_id`."""
    stored = {name: row[name] for name in ("name", "checks", "actions", "last_updated_at")}
    secrets = content.checks.secrets
    hidden = config_credentials.encode_secrets(secrets) if secrets else None
    await saved_versions.create_version(session, "guardrails", row, stored, row["version_id"], hidden)


async def load_older_checks(session: TenantSession, row: Row) -> list[SplitDocument]:
    """Returns the checks of recent versions, newest first."""
    _, rows = await saved_versions.list_versions(session, row["id"], PageRequest(size=MAX_SEARCHED_VERSIONS))
    return [(await open_content(session, row["content"], row)).checks for row in rows]
