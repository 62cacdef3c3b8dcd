"""Load test of client disconnects.

Measures how soon the provider's connection is closed. Clients and provider run in one process, so that one clock
times both.
"""
