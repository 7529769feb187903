"""Benchmarks: one module per question, each measured side by side with its peers. See the page performance."""
