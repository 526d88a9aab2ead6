"""Other systems on the same weights, cores and prompts. A missing peer is reported as missing, not as beaten."""
