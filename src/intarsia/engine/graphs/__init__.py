"""Steps captured once a shape and replayed: what a GPU needs so that launching costs next to nothing.

A captured step reads its inputs from memory that stays where it is. Before each replay they are filled in one
copy, and page tables where they changed. The host waits once, for the tokens.
"""
