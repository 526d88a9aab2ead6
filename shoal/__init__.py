"""What every part of shoal shares: the ShardedModel, the model manifest, the planner and the wire.

Imports none of the parts (router, stage, operator, command line).
"""

__version__ = "0.1.0"
