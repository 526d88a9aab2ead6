"""The planner: from block sizes, node facts and a spec to a plan. Pure: no client, no clock, no files."""
