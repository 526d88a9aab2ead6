"""`shoal bench`: how fast an endpoint answers, at given concurrencies and prompt lengths, or over a long time.

run (asks, notes times) ──> figures (pure: percentiles) ──> table and bars in the terminal, JSON, one HTML page
soak (keeps asking)     ──> drift (pure: windows, thirds) ──> drift_chart (pure: SVG), the same ways out
"""
