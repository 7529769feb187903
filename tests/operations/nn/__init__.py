"""Rows of the operations that networks are made of."""
