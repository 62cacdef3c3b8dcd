"""Workspaces, users, invites and API keys of an organisation."""
