"""Runs a ShardedModel as processes of this machine: what the operator does in a cluster, without a cluster.

nodes.py       this machine, divided into as many nodes as stages are wanted
models.py      the ShardedModel's model as a directory in the cache: found, or compiled once
launch.py      the command line of each process
process.py     one process: its events, its log, its end
pipeline.py    all processes of one run: start, watch, restart, stop
rundir.py      the folder of a run: plan.json and logs
"""
