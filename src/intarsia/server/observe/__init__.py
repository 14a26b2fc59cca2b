"""What an operator sees: metrics, one log line a request, stack dumps, a watchdog."""
