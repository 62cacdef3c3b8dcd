"""The gateway and its peers doing the same work on one machine in one run."""
