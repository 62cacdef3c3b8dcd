"""Load scenarios, one per file: the requests each sends and the responses it accepts."""

# Chats run last, so that they reveal problems that the earlier faults left behind.
SCENARIO_NAMES = ("faults", "stream", "chat")
