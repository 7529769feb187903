"""Graphs and plans as people read them: tables, Graphviz, HTML."""
