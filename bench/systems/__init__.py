"""shoal itself as workers: see bench.workers. Each module is one arrangement of its parts."""
