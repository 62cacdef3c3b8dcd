"""Where large things live, by name: what is put is there whole or not at all."""
