"""Callers who leave, and when their provider hears of it: one process is both, so that one clock times it."""
