"""Imported by the fork server when it starts."""

import gc

from tests.fork_server import preload

preload()
# Without this, the first collection in each fork would copy the whole heap.
gc.freeze()
