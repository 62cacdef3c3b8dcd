"""Load test of budgets: many clients spend one budget, and the report states by how much they exceeded it."""
