"""Op definitions: operands, attributes, inference, and where the meaning of each lies."""
