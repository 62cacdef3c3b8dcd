"""Background jobs of the control process: loops and writers that run beside its server."""
