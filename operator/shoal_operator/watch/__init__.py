"""The operator's page: every ShardedModel that it serves, as the router's page shows one.

cache ──> picture (pure) ──> serve: one stream of events, which page/ draws
"""
