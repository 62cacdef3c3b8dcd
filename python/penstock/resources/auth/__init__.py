"""Authentication routes: console sessions, accepted invitations, and information about the caller."""
