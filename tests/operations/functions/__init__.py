"""Rows of functions that are made of several operations, or of one with other parameters."""
