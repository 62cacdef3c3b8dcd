"""The settings section `[guardrails]`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Guardrails(msgspec.Struct, frozen=True, kw_only=True):
    """Default models of guardrail checks. Each workspace needs a saved provider with the slug of the model."""

    moderation_model: Annotated[
        str,
        Meta(description="model of `gateway.moderateContent` without `model`, such as `@my-openai/gpt-4o-mini`"),
    ] = ""
    pii_model: Annotated[
        str,
        Meta(description="model with which `gateway.pii` without `model` finds names and addresses"),
    ] = ""
