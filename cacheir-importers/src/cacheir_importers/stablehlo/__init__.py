"""Reads StableHLO programs in their text form."""
