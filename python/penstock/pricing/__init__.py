"""Pricing: the price book, its wire format and what the engine is given."""
