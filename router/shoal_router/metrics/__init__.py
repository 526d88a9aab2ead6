"""What Prometheus reads of a router, on a port of its own.

families  every metric: its name, its meaning, its labels
bubble    how much of the stages' time is empty while there is work: pure
pipeline  one pipeline's steps and recoveries as they happen
requests  requests as they come and end, around a Generator
levels    what is read when Prometheus asks: queue, KV blocks, drafts, refusals
listen    the port

Labels come from closed sets: finish reasons, error codes, stages and pipelines of the plan. No request, client, key or
address is a label, so the number of series is bounded by the number of stages.
"""
