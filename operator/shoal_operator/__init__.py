"""The operator: `kubectl apply` of a ShardedModel becomes stages, a router and a status, and stays so."""
