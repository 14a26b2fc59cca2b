"""Tuning: which configuration of each kernel is the fastest on this device, and the file that keeps it."""
