"""Texts: tasks and their references, metrics, and how the corpus is built."""
