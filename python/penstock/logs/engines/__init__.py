"""Engines of the log store: DuckDB for one node, ClickHouse for any number of nodes."""
