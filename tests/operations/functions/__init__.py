"""Rows of functions that are made of several operations."""
