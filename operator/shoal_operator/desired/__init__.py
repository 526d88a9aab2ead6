"""What should exist for a ShardedModel: one pure builder a kind of child. No client, no clock, no randomness.

`objects.py` puts them together. Every builder takes the `Intent`, and what it needs of the plan, and returns plain
dicts that are complete: server-side apply makes the cluster's objects so.
"""
