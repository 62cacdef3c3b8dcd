"""Prices that are saved with integrations: prices of single models, and an adjustment of all other prices, such as a
discount by contract.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import select

from penstock.pricing import engine_export
from penstock.pricing.wire_format import PricingConfig
from penstock.store.tables import integration_models, integrations

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

log = logging.getLogger("penstock")


class SavedPrices(msgspec.Struct, frozen=True):
    """Prices of one integration in the engine's format."""

    prices_by_model: dict[str, list[dict[str, Any]]]
    adjustment: dict[str, Any] | None = None


async def load_saved_prices(connection: AsyncConnection, condition: ColumnElement[bool]) -> dict[str, SavedPrices]:
    """Returns the prices of the integrations that meet a condition, by their ids. Omits integrations whose prices
    cannot be read.
    """
    prices_by_integration: dict[str, SavedPrices] = {}
    rows = await connection.execute(select(integrations.c.id, integrations.c.pricing_adjustments).where(condition))
    for row in rows:
        prices_by_integration[row.id] = SavedPrices({}, engine_export.export_adjustments(row.pricing_adjustments))
    query = (
        select(integration_models.c.integration_id, integration_models.c.slug, integration_models.c.pricing_config)
        .join(integrations, integrations.c.id == integration_models.c.integration_id)
        .where(condition, integration_models.c.pricing_config.is_not(None))
    )
    for row in await connection.execute(query):
        if row.pricing_config is None or row.integration_id not in prices_by_integration:
            continue
        try:
            config = msgspec.convert(row.pricing_config, PricingConfig)
        except msgspec.ValidationError as error:
            log.warning("the prices of the integration %s cannot be read: its model %r: %s", *row[:2], error)
            del prices_by_integration[row.integration_id]
            continue
        prices_by_integration[row.integration_id].prices_by_model[row.slug] = engine_export.export_operator_prices(
            config
        )
    return prices_by_integration
