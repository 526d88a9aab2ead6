"""The transformer as OpenVINO graphs, written operation by operation in the forms that the plugins fuse."""
