"""The OpenAI-compatible HTTP service: settings, translation, grammars, replies, connections, observation."""
