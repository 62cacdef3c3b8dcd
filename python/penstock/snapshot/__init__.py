"""Snapshot: the configuration of the data plane, read from the store and published to the engines."""
