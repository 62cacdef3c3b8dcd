"""Declarative management of an organisation: exports its state as one document, compares it with a gateway, and applies
it.
"""
