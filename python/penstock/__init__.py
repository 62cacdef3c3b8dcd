"""Penstock: an AI gateway that forwards, routes and records calls to model providers."""

__version__ = "0.1.0"
MANAGEMENT_API_VERSION = "2.0.0"
