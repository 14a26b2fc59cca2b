"""Traffic on an OpenAI-compatible server: who asks for what, and how long it takes."""
