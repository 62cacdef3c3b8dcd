"""Who sends a request to the management API, and what they may do."""
