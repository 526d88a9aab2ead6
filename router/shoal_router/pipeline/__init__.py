"""The gRPC ring: how steps reach the stages and results come back.

interface    the seam: PipelineOpener, Pipeline, PipelineFacts
fake         the seam in memory
plan_source  where the stages are
readiness    waiting for them
fit          whether they make one pipeline, and what it can hold
opener       all of that, and Open: a RingPipeline
ring         one epoch: frames out, results in, pulses and heartbeats
transport    gRPC options
timings      sums of the stages' times
"""
