"""What clients send and get: strict structures that mirror OpenAI's format, and nothing of the engine."""
