"""Kernels of oneDNN for the CPU, library ``"onednn"``."""
