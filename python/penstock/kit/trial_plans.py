"""Plans of guardrail trials whose checks ask models. Only the edge can send requests to models, so the control process
authorises a trial, and the edge takes its plan and runs it. Clients see the name of a plan at most.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Response

from penstock.secrets import config_credentials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kit.guardrails import Content
    from penstock.kit.tenant_session import TenantSession

    JsonObject = dict[str, Any]

PLAN_HEADER = "x-penstock-trial-plan"
# Plans that the edge has not taken yet. It takes them at once, so an old one is never taken.
MAX_PLANS = 64
NAME_BYTES = 16

_plans: dict[str, bytes] = {}


class TrialPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the edge runs: a guardrail on subjects, in a workspace. `asked_by` is the id of the key or user."""

    form: Literal["trial", "moderations"]
    workspace: str
    asked_by: str
    content: dict[str, Any]
    subjects: list[dict[str, Any]]


def plan_trials(
    session: TenantSession,
    workspace_id: str,
    form: Literal["trial", "moderations"],
    content: Content,
    subjects: Sequence[JsonObject],
) -> Response[bytes]:
    """Stores a plan, and returns the response with its name, which the edge replaces by the result."""
    plan = TrialPlan(
        form=form,
        workspace=workspace_id,
        asked_by=session.caller.key_id or session.caller.actor_id,
        content={"checks": config_credentials.join_credentials(content.checks), "actions": content.actions},
        subjects=list(subjects),
    )
    name = secrets.token_hex(NAME_BYTES)
    _plans[name] = msgspec.json.encode(plan)
    while len(_plans) > MAX_PLANS:
        del _plans[next(iter(_plans))]
    return Response(b"{}", status_code=200, media_type="application/json", headers={PLAN_HEADER: name})


def take_plan(name: str) -> bytes | None:
    """Returns a plan and forgets it; `None` if there is none of this name."""
    return _plans.pop(name, None)
