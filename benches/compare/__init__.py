"""Comparison benchmark. Runs Penstock and other gateways with the same workloads on one machine in one run."""
