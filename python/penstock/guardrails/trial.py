"""Trial of a guardrail: runs its checks on a text, a request or a response, without a client's request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock import engine
from penstock.errors import InvalidError, Problem
from penstock.guardrails import saved_guardrails
from penstock.kit.costly_work import CostlyWork
from penstock.kit.json_depth import nests_deeper
from penstock.schemas import field_error
from penstock.secrets import config_credentials
from penstock.settings.engine_json import encode_engine_settings

if TYPE_CHECKING:
    from penstock.settings import Settings

MAX_TEXT_CHARS = 1_000_000
# Maximum numbers of trials at once: in total, per organisation, and per workspace or user. They are low, because a
# check may wait for another host.
TRIAL_SLOTS = (8, 6, 2)
# Time limit of a trial, with its wait for a slot. Less than the 30 seconds that the edge worker waits for the
# management API.
MAX_TRIAL_SECONDS = 20
# Maximum nesting of objects and lists in a body. The engine reads 128 levels, and the subject of the trial adds a level
# around the body.
MAX_BODY_DEPTH = 126

_trials = CostlyWork("guardrail-trial", TRIAL_SLOTS, MAX_TRIAL_SECONDS)

_JsonObject = dict[str, Any]


class TrialRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a guardrail is tried on: a text, or the body of a request or response."""

    stage: Annotated[
        Literal["input", "output"], Meta(description="`input`: the checks see a request; `output`: a response")
    ] = "input"
    text: Annotated[
        Annotated[str, Meta(max_length=MAX_TEXT_CHARS)] | None,
        Meta(description="text of the user, or of the model with the stage `output`; instead of a body"),
    ] = None
    request: Annotated[_JsonObject | None, Meta(description="body of a request in any API format")] = None
    response: Annotated[
        _JsonObject | None, Meta(description="body of a response; required with the stage `output` without a text")
    ] = None
    provider: Annotated[str, Meta(max_length=128, description="provider that the checks see, such as `openai`")] = ""
    model: Annotated[str, Meta(max_length=255, description="model that the checks see")] = ""
    metadata: Annotated[
        Annotated[dict[str, str], Meta(max_length=64)], Meta(description="metadata of the request")
    ] = {}


class UnsavedTrialRequest(TrialRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An unsaved guardrail and the subject of its trial."""

    checks: saved_guardrails.ChecksField
    actions: saved_guardrails.ActionsField = msgspec.field(default_factory=saved_guardrails.Actions)


class EditedTrialRequest(TrialRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a saved guardrail is tried on, and edits that are not saved."""

    checks: saved_guardrails.OptionalChecks = msgspec.UNSET
    actions: saved_guardrails.OptionalActions = msgspec.UNSET


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a guardrail trial. No request was sent to a provider, and no record is written."""

    verdict: Annotated[bool, Meta(description="true: all checks passed")]
    denied: Annotated[bool, Meta(description="true: a request or response like this one would be rejected")]
    transformed: Annotated[bool, Meta(description="true: the guardrail changed the text or the body")]
    texts: Annotated[list[str], Meta(description="the texts after all changes")]
    body: Annotated[_JsonObject, Meta(description="the body after all changes")]
    results: Annotated[
        list[_JsonObject], Meta(description="results of the checks, as `hook_results` of a response has them")
    ]
    object: Annotated[str, Meta(description="type of the object")] = "guardrail_trial"


async def run_trial(
    settings: Settings, content: saved_guardrails.Content, trial: TrialRequest, slug: str = ""
) -> TrialResult:
    """Runs a guardrail. Raises `InvalidError` if the guardrail cannot be used, if the subject is not valid, or if the
    run takes too long.

    Raises `UnavailableError` if too many other trials run.
    """
    subject = build_subject(trial, slug)
    document = {"checks": config_credentials.join_credentials(content.checks), "actions": content.actions}
    encoded = (encode_engine_settings(settings, 0), msgspec.json.encode(document), msgspec.json.encode(subject))
    try:
        result = await _trials.run(engine.run_guardrail, *encoded)
    except TimeoutError:
        message = f"the checks took longer than {MAX_TRIAL_SECONDS} s; hint: a shorter text, or a simpler pattern"
        raise field_error("", message) from None
    except engine.EngineError as error:
        problems = [Problem(problem["path"].removeprefix("$."), problem["message"]) for problem in error.problems]
        raise InvalidError("the guardrail cannot be used", problems or [Problem("", str(error))]) from None
    return msgspec.convert(result, TrialResult)


def build_text_subject(text: str) -> _JsonObject:
    """Returns the subject of a trial on a text of a user, as the engine reads it."""
    return {"is_output": False, "request": {"messages": [{"role": "user", "content": text}]}}


def build_subject(trial: TrialRequest, slug: str = "") -> _JsonObject:
    """Returns the subject of a trial, as the engine reads it. Raises `InvalidError` for an invalid body."""
    bodies = {"request": trial.request, "response": trial.response}
    if deep := [name for name, body in bodies.items() if nests_deeper(body, MAX_BODY_DEPTH)]:
        message = f"nests too deep; at most {MAX_BODY_DEPTH} levels of objects and lists are allowed"
        raise InvalidError("the body cannot be read", [Problem(name, message) for name in deep])
    is_output = trial.stage == "output"
    if trial.text is not None:
        sent_fields = [
            name
            for name in ("request", "response")
            if getattr(trial, name) is not None and (name == "response" or not is_output)
        ]
        if sent_fields:
            raise field_error(sent_fields[0], "is not allowed together with text; send one of them")
    elif (trial.response if is_output else trial.request) is None:
        raise field_error("text", f"is required, or {'response' if is_output else 'request'}")
    if trial.response is not None and not is_output:
        raise field_error("response", "is not allowed with the stage input")
    text = trial.text or ""
    chat_request = {"messages": [{"role": "user", "content": "" if is_output else text}]}
    response = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    request = trial.request if trial.request is not None else chat_request
    return {
        "is_output": is_output,
        "slug": slug,
        "request": request,
        "response": (trial.response if trial.response is not None else response) if is_output else None,
        "provider": trial.provider,
        "model": trial.model or str(request.get("model") or ""),
        "metadata": trial.metadata,
    }
