"""What the API of logs does: filters, visibility, exports, custom logs and re-rating."""
