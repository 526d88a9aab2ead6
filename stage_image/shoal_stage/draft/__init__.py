"""The draft process: a small model as one paged stage that drafts ahead of the texts that a router tells it of.

book        whose text stands how, and what the next step should feed: pure
thread      the engine's thread: takes in what came, runs a step, tells what was drafted
service     the gRPC face, one stream a router
server      from loading to the end; the port
settings, main   `python -m shoal_stage draft`
"""
