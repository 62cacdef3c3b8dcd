"""Models of guardrail checks that need a model and name none."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.errors import StartupError
from penstock.plugins.program import register_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.settings import Settings

MODERATION_CHECK, PERSONAL_DATA_CHECK = "gateway.moderateContent", "gateway.pii"
# Categories of personal data that only a model finds.
CATEGORIES_BY_MODEL = frozenset({"NAME", "LOCATION_ADDRESS"})


def register_checks(settings: Settings) -> None:
    """Passes what compiled checks depend on to the engine: plug-ins and default models. Raises StartupError if one of
    them is invalid.
    """
    register_plugins(settings)
    moderation_model, pii_model = settings.guardrails.moderation_model, settings.guardrails.pii_model
    if not (moderation_model or pii_model):
        return
    # Imported here, because without default models this process does not need the engine.
    engine = importlib.import_module("penstock.engine")
    try:
        engine.set_default_models(moderation_model, pii_model)
    except ValueError as error:
        raise StartupError(str(error)) from None


def may_use_default_model(check: Mapping[str, Any]) -> bool:
    """True if a check without a model of its own asks the default model."""
    return check["id"] == MODERATION_CHECK or (
        check["id"] == PERSONAL_DATA_CHECK
        and not CATEGORIES_BY_MODEL.isdisjoint(check["parameters"].get("categories") or ())
    )
