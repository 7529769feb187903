"""Several ranks that run one graph: what they agree on, the edges between them, and what they tell each other."""
