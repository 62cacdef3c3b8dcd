"""Saved prompts, partials, labels and collections."""
