"""Who is calling: sessions of the console, invitations that are accepted, and what is known of a caller."""
