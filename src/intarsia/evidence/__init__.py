"""Checks, quality, speed and synthetic checkpoints: what can be claimed, and how anyone makes it again."""
