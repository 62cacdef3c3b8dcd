"""Snapshot: what the data plane must know, gathered from the store and published to the engines."""
