"""Transforms of functions of arrays: gradients, graphs, and the derivative rules behind them."""
