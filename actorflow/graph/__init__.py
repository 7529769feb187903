"""The definition: graphs, their nodes, gradients, branches and loops."""
