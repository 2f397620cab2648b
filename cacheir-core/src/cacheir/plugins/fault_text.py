"""What an exception of a plugin says of itself, for a sentence about it."""

from __future__ import annotations


def fault_text(error: BaseException) -> str:
    """``str(error)``; its class is a plugin's code too, so that a text that cannot be had is all it costs."""
    try:
        return str(error)
    # Whatever __str__ raises is one more fault of the same plugin, and it is in the sentence.
    except Exception as fault:  # noqa: BLE001
        return f"its text cannot be had: {type(fault).__name__}"
