"""From a graph to a plan: checks, order, kernels, copies, lanes and memory. Pure: nothing here runs."""
