"""Importers of other gateways' configurations: from their files, or LiteLLM's database, to a state document and
findings.
"""
