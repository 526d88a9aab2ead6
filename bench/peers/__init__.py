"""Other systems on the same weights, cores and prompts. A peer that is missing is reported as missing, not as beaten."""
