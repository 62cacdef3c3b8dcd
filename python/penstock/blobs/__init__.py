"""Blob storage by name. Writes are atomic: a blob is stored completely or not at all."""
