"""What every resource of the management API stands on."""
