"""Intarsia reads, plans, converts, proves and serves models whose every module has its own number format."""
