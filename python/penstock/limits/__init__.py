"""Usage and rate limits: policies, what is used of them, and their simulation."""
