"""Path search, ranking and explanation over the graph. Pure."""
