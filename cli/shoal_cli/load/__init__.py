"""`shoal bench`: how fast an endpoint answers, at given concurrencies and prompt lengths.

run (asks, notes times) ──> figures (pure: percentiles) ──> table and bars in the terminal, JSON, one HTML page
"""
