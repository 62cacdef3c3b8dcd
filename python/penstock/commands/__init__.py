"""Commands of the `penstock` program, one module per subject; `cli` assembles them."""
