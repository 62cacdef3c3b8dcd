"""Callers of the management API: authentication, roles and audit."""
