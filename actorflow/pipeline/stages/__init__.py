"""Stages of pipelines: what each kind of them does with its items."""
