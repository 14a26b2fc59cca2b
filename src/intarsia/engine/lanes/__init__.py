"""Lanes: requests while they are served, each with its own rules, drafts and place in the caches."""
