"""Tests: unit, integration, end-to-end, and checks of the repository's structure."""
