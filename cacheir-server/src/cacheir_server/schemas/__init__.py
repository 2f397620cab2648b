"""The bodies that the server takes, field by field; what a field does to a request is written beside it."""
