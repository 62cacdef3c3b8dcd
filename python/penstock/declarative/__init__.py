"""The whole state of an organisation as one document: written down, compared with what is there, and applied."""
