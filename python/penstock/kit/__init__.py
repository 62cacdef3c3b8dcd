"""Shared building blocks of the management API's resources."""
