"""Saved guardrails, their defaults and credentials, and trials of them."""
