"""Secrets: encryption, references to secret managers, masks and credential binding."""
