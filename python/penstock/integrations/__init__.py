"""Integrations, and the providers that workspaces make of them."""
