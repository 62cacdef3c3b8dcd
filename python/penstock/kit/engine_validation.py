"""Validation of stored documents with the engine's own parser, so that only usable documents are saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock import engine
from penstock.errors import InvalidError, Problem
from penstock.kit.costly_work import CostlyWork
from penstock.schemas import field_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings.routing import TargetLimits

# Maximum time in which the engine validates a document, with the wait for a slot.
MAX_VALIDATION_SECONDS = 10
# Maximum numbers of validations at once: in total, per organisation, and per workspace or user.
VALIDATION_SLOTS = (8, 6, 2)

_validations = CostlyWork("validation", VALIDATION_SLOTS, MAX_VALIDATION_SECONDS)


async def validate_document(
    kind: str, document: Mapping[str, Any], field: str = "", limits: TargetLimits | None = None
) -> None:
    """Validates a config or a guardrail. Raises `InvalidError` with all problems. `field` is the request field that
    contains the document; it is empty if the body is the document.
    """
    try:
        await check_in_engine(kind, document, limits)
    except TimeoutError:
        message = f"takes longer than {MAX_VALIDATION_SECONDS} s to compile; use a smaller {kind}"
        raise field_error(field or kind, message) from None
    except engine.EngineError as error:
        problems = [
            Problem(f"{field}{problem['path'].removeprefix('$')}".removeprefix("."), problem["message"])
            for problem in error.problems
        ]
        raise InvalidError(f"the {kind} cannot be used", problems or [Problem(field, str(error))]) from None


async def check_in_engine(kind: str, document: Mapping[str, Any], limits: TargetLimits | None = None) -> None:
    """Checks a document in the engine. Raises `EngineError` with all problems, `TimeoutError` if that takes too long,
    and `UnavailableError` if other validations occupy all slots of the caller's tenant.

    Runs on another thread: a large document takes long, and other requests would have to wait.
    """
    await _validations.run(engine.check, kind, msgspec.json.encode(document), limits)
