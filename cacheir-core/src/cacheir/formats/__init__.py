"""Block formats of quantised storage, and arrays that are stored in them."""
