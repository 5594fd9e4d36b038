"""Many runs: jobs, workers, their state."""
