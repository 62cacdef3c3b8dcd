"""Load test of budgets: many clients spend one, and the report says by how much it was exceeded."""
