"""Classification of texts without a guardrail: moderation, language, personal data, gibberish."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, cast

import msgspec
from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta

from penstock import engine
from penstock.authorization import require_scopes
from penstock.errors import ForbiddenError
from penstock.guardrails import saved_guardrails
from penstock.guardrails.trial import build_text_subject
from penstock.guardrails.trial_plans import plan_trials
from penstock.kit.tenant_session import RequestContext, TenantSession
from penstock.schemas import field_error
from penstock.settings import Settings

TAGS = ["Guardrails"]
GUARDS = [require_scopes("guardrails.invoke")]
MODEL_SCOPE = "completions.write"
MAX_TEXTS, MAX_MODERATED_TEXTS = 1000, 32
MAX_CHARS = 1_000_000

_Text = Annotated[str, Meta(max_length=MAX_CHARS)]
TextInput = Annotated[
    _Text | Annotated[list[_Text], Meta(min_length=1, max_length=MAX_TEXTS)],
    Meta(description=f"one text, or up to {MAX_TEXTS}, with {MAX_CHARS} characters in all"),
]
PersonalDataCategory = Literal["EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS", "CREDIT_CARD", "SSN", "IBAN"]
ModerationCategory = Literal[
    "hate",
    "hate/threatening",
    "harassment",
    "harassment/threatening",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
]
ALL_PERSONAL_DATA: tuple[PersonalDataCategory, ...] = PersonalDataCategory.__args__  # type: ignore[attr-defined]
ALL_MODERATED: tuple[ModerationCategory, ...] = ModerationCategory.__args__  # type: ignore[attr-defined]


class ClassifyTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts to classify."""

    input: TextInput


class FindPersonalData(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Texts to search for personal data."""

    input: TextInput
    categories: Annotated[
        Annotated[list[PersonalDataCategory], Meta(min_length=1)] | None,
        Meta(description="categories to look for; all by default. Names and addresses need a guardrail with a model"),
    ] = None


class ModerateTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Texts to moderate."""

    input: TextInput
    model: Annotated[
        Annotated[str, Meta(pattern=r"^@[^/ ]+/[^\n]+(?!\n)$", max_length=255)] | None,
        Meta(
            description="model of a saved provider that moderates, such as `@my-openai/gpt-4o-mini`; the default is `guardrails.moderation_model` of the settings"
        ),
    ] = None
    categories: Annotated[
        Annotated[list[ModerationCategory], Meta(min_length=1)] | None,
        Meta(description="categories to look for; all by default"),
    ] = None


class TextLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A class of a text."""

    label: Annotated[str, Meta(description="code of a language such as `eng_Latn`, or `clean` or `gibberish`")]
    score: Annotated[float | None, Meta(description="confidence from 0 to 1, if there is one")] = None


class PersonalDataEntity(msgspec.Struct, frozen=True):
    """Personal data that a text has."""

    text: Annotated[str, Meta(description="the personal data")]
    labels: Annotated[dict[str, float], Meta(description="its category, with the score 1")]


class PersonalDataResult(msgspec.Struct, frozen=True):
    """Personal data of one text."""

    entities: Annotated[list[PersonalDataEntity], Meta(description="what was found, in the order of the text")]
    processed_text: Annotated[str, Meta(description="the text with placeholders in place of personal data")]


class ModerationResult(msgspec.Struct, frozen=True):
    """Moderation of one text."""

    flagged: Annotated[bool, Meta(description="true: the model found one of the categories")]
    categories: Annotated[dict[str, bool], Meta(description="each category that was looked for")]


class Moderation(msgspec.Struct, frozen=True):
    """Moderation of all texts."""

    results: Annotated[list[ModerationResult], Meta(description="one result for each text")]


@post(
    "/moderations",
    status_code=200,
    guards=GUARDS,
    summary="Moderate texts",
    tags=TAGS,
    opt={"changes_nothing": True},
)
async def moderate_texts(
    data: JSONBody[ModerateTexts], context: NamedDependency[RequestContext], settings: NamedDependency[Settings]
) -> Moderation:
    """Asks a model of the workspace which categories of harmful content each text has. The questions are requests of
    the caller: the scope `completions.write` is needed, too.
    """
    texts = _list_texts(data.input, MAX_MODERATED_TEXTS)
    model = data.model or settings.guardrails.moderation_model
    if not model:
        raise field_error("model", "is required, because the setting guardrails.moderation_model has no model")
    parameters = {"model": model, "categories": data.categories or list(ALL_MODERATED), "timeout": 15_000}
    check = saved_guardrails.Check(id="gateway.moderateContent", parameters=parameters)
    content = await saved_guardrails.make_content(
        saved_guardrails.checks_to_builtins([check]), saved_guardrails.actions_to_builtins(saved_guardrails.Actions())
    )
    async with context.read_session() as session:
        _require_workspace(session)
        session.require_any_scope(MODEL_SCOPE)
        if session.workspace_id is None:
            raise field_error("model", "needs a key of a workspace, whose saved providers it names")
        subjects = [build_text_subject(text) for text in texts]
        # This response contains only the name of a plan. The edge runs the plan and replaces the response.
        planned: Response[Any] = plan_trials(session, session.workspace_id, "moderations", content, subjects)
        return cast("Moderation", planned)


@post(
    "/language",
    status_code=200,
    guards=GUARDS,
    summary="Detect languages",
    tags=TAGS,
    opt={"changes_nothing": True},
)
async def detect_languages(
    data: JSONBody[ClassifyTexts], context: NamedDependency[RequestContext]
) -> list[list[TextLabel]]:
    """Names the language of each text. The list of a text is empty if its language is not certain."""
    return msgspec.convert(await _classify(context, "language", data.input), list[list[TextLabel]])


@post(
    "/pii",
    status_code=200,
    guards=GUARDS,
    summary="Find personal data",
    tags=TAGS,
    opt={"changes_nothing": True},
)
async def find_personal_data(
    data: JSONBody[FindPersonalData], context: NamedDependency[RequestContext]
) -> list[PersonalDataResult]:
    """Finds personal data in each text by its form, and replaces it by placeholders."""
    categories = data.categories or list(ALL_PERSONAL_DATA)
    return msgspec.convert(await _classify(context, "pii", data.input, categories), list[PersonalDataResult])


@post(
    "/gibberish",
    status_code=200,
    guards=GUARDS,
    summary="Find gibberish",
    tags=TAGS,
    opt={"changes_nothing": True},
)
async def find_gibberish(
    data: JSONBody[ClassifyTexts], context: NamedDependency[RequestContext]
) -> list[list[TextLabel]]:
    """Labels each text as `clean` or `gibberish`."""
    return msgspec.convert(await _classify(context, "gibberish", data.input), list[list[TextLabel]])


async def _classify(
    context: RequestContext, kind: str, texts: str | list[str], categories: list[PersonalDataCategory] | None = None
) -> Any:  # noqa: ANN401 - parsed JSON
    encoded = msgspec.json.encode(
        {"kind": kind, "inputs": _list_texts(texts, MAX_TEXTS), "categories": categories or []}
    )
    async with context.read_session() as session:
        _require_workspace(session)
    return await asyncio.to_thread(engine.classify_texts, encoded)


def _require_workspace(session: TenantSession) -> None:
    """Raises ForbiddenError if the caller has access to some workspaces only, and the request selects none of them."""
    if session.workspace_id is None and not session.caller.is_organisation_admin:
        message = "this needs a key of a workspace"
        raise ForbiddenError(message)


def _list_texts(texts: str | list[str], maximum: int) -> list[str]:
    listed = [texts] if isinstance(texts, str) else texts
    if len(listed) > maximum:
        raise field_error("input", f"has {len(listed)} texts; at most {maximum} are allowed")
    if (length := sum(map(len, listed))) > MAX_CHARS:
        raise field_error("input", f"has {length} characters in all; at most {MAX_CHARS} are allowed")
    return listed


routes = [moderate_texts, detect_languages, find_personal_data, find_gibberish]
