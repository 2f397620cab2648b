"""Tool calls: read out of a model's text as it comes, in the formats of the families."""
