"""Calls of users' functions: on the loop, in threads, in processes, or as tasks."""
