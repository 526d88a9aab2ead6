"""Hits a local pipeline with everything that happens to processes and links, while clients ask and judge."""
