"""Several ranks that run one graph: what they agree on, and what they tell each other."""
