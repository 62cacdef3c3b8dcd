"""The settings section `[guardrail_plugins]`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MEBIBYTE = 1024 * 1024


class GuardrailPlugins(msgspec.Struct, frozen=True, kw_only=True):
    """Plug-ins of guardrails: checks that the operator writes in Python."""

    paths: Annotated[
        tuple[str, ...],
        Meta(description="Python files with checks, and folders of such files; read once, when the gateway starts"),
    ] = ()
    memory_bytes: Annotated[
        int, Meta(ge=64 * MEBIBYTE, description="memory that the process of all plug-ins may use")
    ] = 1024 * MEBIBYTE
