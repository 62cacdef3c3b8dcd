"""What Penstock costs: its parts alone, and the whole beside its peers."""
