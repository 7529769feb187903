"""The definition: graphs, their nodes, and what is built of them."""
