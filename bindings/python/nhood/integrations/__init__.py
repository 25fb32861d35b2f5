"""nhood inside of other packages' models."""
