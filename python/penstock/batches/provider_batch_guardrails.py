"""Guardrails and parameter overrides for a batch that a provider runs. They could not act on the batch, because its
requests do not pass the gateway. The gateway therefore rejects a batch to which any of them applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.batches.providers.client import RequestRejectedError

if TYPE_CHECKING:
    from penstock.batches.input import BatchInput
    from penstock.batches.providers.client import BatchClient


class GuardrailDeniedError(RequestRejectedError):
    """A guardrail or config applies to the batch, so the batch must not be sent to its provider."""


class AppliedGuardrail(msgspec.Struct, frozen=True):
    """A guardrail that applies to the requests of a batch."""

    id: str
    origin: str
    deny: bool
    changes: bool
    is_async: bool = msgspec.field(name="async")
    dry_run: bool = False

    @property
    def must_see_lines(self) -> bool:
        """True if the batch must not run without this guardrail, which denies or changes requests or responses."""
        return (self.deny or self.changes) and not self.is_async and not self.dry_run


class ExplainedTarget(msgspec.Struct, frozen=True):
    """A target that requests of the batch would be sent to."""

    guardrails: list[AppliedGuardrail] = []
    changes_parameters: bool = False


class Explanation(msgspec.Struct, frozen=True):
    """Targets, guardrails and overrides that the gateway would use for a request of the batch."""

    targets: list[ExplainedTarget]


async def require_unguarded(client: BatchClient, batch_input: BatchInput) -> None:
    """Raises a `GuardrailDeniedError` if guardrails or overrides apply to the batch. A batch at the provider would
    bypass them.
    """
    first = await anext(aiter(batch_input.requests()), None)
    if first is None:
        return
    _, line = first
    request = {"path": line.url, "method": "POST", "body": {"model": line.body.get("model")}}
    explanation = await client.request_json(Explanation, "POST", "/v1/explain", msgspec.json.encode(request))
    hint = "use the completion_window 'immediate', with which the gateway sends each line itself"
    for target in explanation.targets:
        for guardrail in target.guardrails:
            if guardrail.must_see_lines:
                raise GuardrailDeniedError(
                    f"the guardrail {guardrail.id} ({guardrail.origin}) cannot check a batch that a provider runs; {hint}"
                )
        if target.changes_parameters:
            raise GuardrailDeniedError(f"the config changes requests, but not those of a provider's batch; {hint}")
