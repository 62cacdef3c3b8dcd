"""One scenario a file; what each sends and what it accepts as an answer."""

# Chats come last: what the faults before them left broken shows there.
NAMES = ("faults", "stream", "chat")
