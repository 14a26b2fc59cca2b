"""Structured output: grammars from schemas and tools, compiled within limits, kept in a bounded cache."""
