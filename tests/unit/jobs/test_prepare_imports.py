"""Imports of the short-lived process that prepares the store: each start of the gateway waits for it."""

from __future__ import annotations

import subprocess
import sys


def test_preparation_does_without_the_framework_of_the_routes():
    program = "import sys, penstock.jobs.prepare; print('litestar' in sys.modules, 'aiohttp' in sys.modules)"
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=120)
    assert printed.split() == ["False", "False"]
