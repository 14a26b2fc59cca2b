"""Trains the small GLM-5.3-Flash-architecture model of the package; `__main__` says how."""
