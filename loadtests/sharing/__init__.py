"""What callers notice while the Redis that gateways share fails in all the ways that it can."""
