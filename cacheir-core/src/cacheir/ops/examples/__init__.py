"""Operand types and attributes on which the conformance kit tries each op: odd sizes, one row, none, narrow types."""
