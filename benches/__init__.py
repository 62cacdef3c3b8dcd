"""Benchmarks of Penstock: single components, and the complete gateway compared with other gateways."""
