"""From what the engine answers to what a client gets."""
