"""Loops and writers that run beside the control process's server."""
