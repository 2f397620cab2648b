"""Languages that output can be held to, by the library llguidance."""
