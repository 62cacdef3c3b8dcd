"""Logs: one row per request in a log store, with its queries for logs and analytics."""
