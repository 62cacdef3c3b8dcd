"""Load tests with locust: realistic client traffic of chats, streams and failing providers."""
