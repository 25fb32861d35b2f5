"""Stand-ins for other packages, computed by nhood."""
