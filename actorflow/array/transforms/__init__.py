"""What makes functions and graphs of functions of arrays: gradients, graphs, and derivative rules."""
