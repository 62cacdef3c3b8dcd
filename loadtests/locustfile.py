"""The scenarios for locust itself: `locust -f loadtests/locustfile.py --host http://127.0.0.1:8787 Chat`."""

from loadtests.scenarios.chat import Chat
from loadtests.scenarios.faults import Faults
from loadtests.scenarios.stream import Stream

__all__ = ["Chat", "Faults", "Stream"]
