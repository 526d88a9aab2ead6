"""The gateway: one address for several ShardedModels. It finds a model's router, and passes requests and answers on.

It knows no tokens and keeps no answers; errors, keys and request ids are those of the routers' own edge (api/).
"""
