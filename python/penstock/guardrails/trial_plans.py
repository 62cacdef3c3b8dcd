"""Plans of guardrail trials whose checks send requests to models. Only edge workers can do that: the control process
authorises a trial and stores its plan, and the edge worker fetches and runs it. Clients see at most the name of a plan.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Response

from penstock.secrets import config_credentials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.guardrails.saved_guardrails import Content
    from penstock.kit.tenant_session import TenantSession

    JsonObject = dict[str, Any]

PLAN_HEADER = "x-penstock-trial-plan"
# Maximum number of plans that wait for an edge worker. The worker fetches its plan at once, so the oldest plans can be
# dropped.
MAX_PLANS = 64
NAME_BYTES = 16

_plans: dict[str, bytes] = {}


class TrialPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A guardrail and the subjects on which an edge worker runs it, in a workspace. `caller_id` is the id of the API key
    or user that requested the trial.
    """

    form: Literal["trial", "moderations"]
    workspace: str
    caller_id: str
    content: dict[str, Any]
    subjects: list[dict[str, Any]]


def plan_trials(
    session: TenantSession,
    workspace_id: str,
    form: Literal["trial", "moderations"],
    content: Content,
    subjects: Sequence[JsonObject],
) -> Response[bytes]:
    """Stores a plan, and returns a response with its name. The edge worker replaces that response by the result of the
    trial.
    """
    plan = TrialPlan(
        form=form,
        workspace=workspace_id,
        caller_id=session.caller.key_id or session.caller.actor_id,
        content={"checks": config_credentials.join_credentials(content.checks), "actions": content.actions},
        subjects=list(subjects),
    )
    name = secrets.token_hex(NAME_BYTES)
    _plans[name] = msgspec.json.encode(plan)
    while len(_plans) > MAX_PLANS:
        del _plans[next(iter(_plans))]
    return Response(b"{}", status_code=200, media_type="application/json", headers={PLAN_HEADER: name})


def take_plan(name: str) -> bytes | None:
    """Removes a stored plan and returns it; `None` if no plan has this name."""
    return _plans.pop(name, None)
