"""The `shoal` command: the edge where a person meets shoal.

Stands above every other part: it loads a ShardedModel, has it planned (shoal.plan) and compiled (shoal_stage.compile),
and runs stages and router as processes of this machine (local/). It owns what is printed and the exit codes.
"""
