"""llama.cpp over RPC: the way to split a model over PCs that most people know.

`build` makes its programs once from pinned sources; `rpc` runs them as nodes under measurement.
"""
