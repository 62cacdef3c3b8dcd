"""Policies: limits on groups of requests of a workspace."""
