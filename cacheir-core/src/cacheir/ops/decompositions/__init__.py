"""What the ops that are no primitives mean: graphs of simpler ops, one function for each op."""
