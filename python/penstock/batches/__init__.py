"""Batches: those that the gateway runs itself and those that providers run."""
