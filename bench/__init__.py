"""Benchmarks: ratios between systems that alternate in one run, pinned to the same cores.

`python -m bench NAME [--quick] --json FILE`. Absolute times on shared machines mean little; every figure that the
documentation quotes is a ratio from one of these, with its spread.
"""
