"""Rows of functions: what is made of several operations, or of one with arguments of its own."""
