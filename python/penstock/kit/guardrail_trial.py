"""Trial of a guardrail: runs its checks on a text, a request or a response, without a client's request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock import engine
from penstock.errors import InvalidError, Problem
from penstock.kit import guardrails as kit
from penstock.schemas import field_error
from penstock.secrets import config_credentials
from penstock.settings.engine_json import encode_engine_settings

if TYPE_CHECKING:
    from penstock.settings import Settings

MAX_TEXT_CHARS = 1_000_000
# Trials of one gateway at the same time, and the time that one may take; a check may wait for another host.
MAX_TRIALS, MAX_TRIAL_SECONDS = 4, 60

_trials = asyncio.Semaphore(MAX_TRIALS)

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
    """A guardrail that is not saved, and what it is tried on."""

    checks: kit.ChecksField
    actions: kit.ActionsField = msgspec.field(default_factory=kit.Actions)


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the guardrail decided. Nothing was sent to a provider, and nothing is logged."""

    verdict: Annotated[bool, Meta(description="true: all checks passed")]
    denied: Annotated[bool, Meta(description="true: a request or response like this one would be rejected")]
    transformed: Annotated[bool, Meta(description="true: the guardrail changed the text or the body")]
    texts: Annotated[list[str], Meta(description="the texts after all changes")]
    body: Annotated[_JsonObject, Meta(description="the body after all changes")]
    results: Annotated[
        list[_JsonObject], Meta(description="results of the checks, as `hook_results` of a response has them")
    ]
    object: Annotated[str, Meta(description="type of the object")] = "guardrail_trial"


async def run_trial(settings: Settings, content: kit.Content, trial: TrialRequest) -> TrialResult:
    """Runs a guardrail. Raises `InvalidError` if it cannot be used, or if the subject is not valid."""
    subject = _build_subject(trial)
    document = {"checks": config_credentials.join_credentials(content.checks), "actions": content.actions}
    encoded = (encode_engine_settings(settings, 0), msgspec.json.encode(document), msgspec.json.encode(subject))
    try:
        async with asyncio.timeout(MAX_TRIAL_SECONDS), _trials:
            # On another thread, because large texts take long and checks wait for other hosts.
            found = await asyncio.to_thread(engine.run_guardrail, *encoded)
    except TimeoutError:
        message = f"the checks took longer than {MAX_TRIAL_SECONDS} s"
        raise field_error("", message) from None
    except engine.EngineError as error:
        problems = [Problem(problem["path"].removeprefix("$."), problem["message"]) for problem in error.problems]
        raise InvalidError("the guardrail cannot be used", problems or [Problem("", str(error))]) from None
    results: list[_JsonObject] = found["results"]
    return TrialResult(
        verdict=all(result.get("verdict", True) for result in results),
        denied=any(result.get("deny", False) for result in results),
        transformed=any(result.get("transformed", False) for result in results),
        texts=found["texts"],
        body=found["body"],
        results=results,
    )


def _build_subject(trial: TrialRequest) -> _JsonObject:
    is_output = trial.stage == "output"
    if trial.text is not None:
        given = [
            name
            for name in ("request", "response")
            if getattr(trial, name) is not None and (name == "response" or not is_output)
        ]
        if given:
            raise field_error(given[0], "is not allowed together with text; send one of them")
    elif (trial.response if is_output else trial.request) is None:
        raise field_error("text", f"is required, or {'response' if is_output else 'request'}")
    if trial.response is not None and not is_output:
        raise field_error("response", "is not allowed with the stage input")
    text = trial.text or ""
    question = {"messages": [{"role": "user", "content": "" if is_output else text}]}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    request = trial.request if trial.request is not None else question
    return {
        "is_output": is_output,
        "request": request,
        "response": (trial.response if trial.response is not None else answer) if is_output else None,
        "provider": trial.provider,
        "model": trial.model or str(request.get("model") or ""),
        "metadata": trial.metadata,
    }
