"""Memory that the ranks of one host share between their GPUs, and exchanges over it."""
