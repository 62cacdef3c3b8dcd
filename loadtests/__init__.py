"""Load that looks like callers: chats, streams and providers that fail, from locust."""
