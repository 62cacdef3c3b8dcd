"""The tests: unit, integration, end to end, and of the shape of the repository itself."""
