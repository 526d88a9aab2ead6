"""How blocks come from the place where they were compiled to the PCs that serve them.

report   a model directory's sizes and digest in one line: the last words of a compile Job
serve    a folder of model directories over HTTP, by digest, with ranges
pull     only the files that a stage needs, by digest: verified, resumed, never fetched twice
"""
