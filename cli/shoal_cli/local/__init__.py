"""Runs a ShardedModel as processes of this machine: what an operator does in a cluster, without a cluster.

adapt.py       the ShardedModel as it applies to one machine, and what of it does not
machine.py     this machine, divided into as many nodes as stages are wanted
models.py      the ShardedModel's model as a directory in the cache: found, or compiled once
serve.py       one run: plan, processes, then serve or answer a question
launch.py      the command line of each process
process.py     one process: its events, its log, its end
pipeline.py    all processes of one run: start, watch, restart, stop
stages.py      which process serves which stage, which stand by; plan.json
probe.py       whether a stage still answers
restarts.py    when a process that ended is started again
rundir.py      the folder of a run: plan.json and logs
"""
