"""Validation of stored documents with the engine's own parser, so that only usable documents are saved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import engine
from penstock.errors import InvalidError, Problem
from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings.routing import TargetLimits

# Longest time for the engine to validate a document.
MAX_VALIDATION_SECONDS = 10


async def validate_document(
    kind: str, document: Mapping[str, Any], field: str = "", limits: TargetLimits | None = None
) -> None:
    """Validates a config or a guardrail. Raises `InvalidError` with all problems; `field` is the field of the request
    that has the document, or empty if the request is the document.

    Runs on another thread, because a large document takes long and other requests would wait.
    """
    try:
        data = msgspec.json.encode(document)
        async with asyncio.timeout(MAX_VALIDATION_SECONDS):
            await asyncio.to_thread(engine.check, kind, data, limits)
    except TimeoutError:
        message = f"takes longer than {MAX_VALIDATION_SECONDS} s to compile; use a smaller {kind}"
        raise field_error(field or kind, message) from None
    except engine.EngineError as error:
        problems = [
            Problem(f"{field}{problem['path'].removeprefix('$')}".removeprefix("."), problem["message"])
            for problem in error.problems
        ]
        raise InvalidError(f"the {kind} cannot be used", problems or [Problem(field, str(error))]) from None
