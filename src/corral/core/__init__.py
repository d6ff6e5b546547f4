"""The types and small modules that all other packages use. No torch, no processes."""
