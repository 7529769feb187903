"""Stages of pipelines: the work of each kind on its items."""
