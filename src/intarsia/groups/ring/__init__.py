"""Ranks that reach only their neighbours: a ring, or a line, of point-to-point links.

Everything travels over the ranks' own lines: what they were started with, requests, partial sums, and news of
a rank that is lost. No address is needed that all ranks can reach.
"""
