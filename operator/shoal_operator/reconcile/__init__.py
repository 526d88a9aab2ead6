"""One reconcile for every cause: gather -> plan -> desired -> apply -> conditions and events.

observed.py    what the cluster holds of one ShardedModel, out of the cache
planning.py    the plan to go on with, and when to look again; freeing.py gives nodes back that cannot be of use
applying.py    write what changed, remove what is not wanted
reconciler.py  the flow, once through, for one ShardedModel
"""
