"""Database layer: SQLAlchemy over SQLite or PostgreSQL. Only the control process and a few commands import it."""
