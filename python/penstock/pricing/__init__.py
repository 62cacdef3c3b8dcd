"""Pricing: the price book, its wire format, and the export of prices for the engine."""
