"""What reports, from inside a worker, what its program does. It decides nothing."""
