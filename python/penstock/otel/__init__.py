"""Ingest of OpenTelemetry spans as logs."""
