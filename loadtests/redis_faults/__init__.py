"""Load test of a shared Redis that fails, measured by the requests of clients."""
