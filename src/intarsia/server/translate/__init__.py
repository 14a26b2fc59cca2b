"""From what a client asked to what the engine is asked."""
