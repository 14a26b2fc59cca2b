"""The loader gate: packs every rank's share a second time, by other code, and holds the loader's against it.

It shares nothing with loading: its own reader of shards, its own scalar codecs, its own table of shares, and
packing by plain loops. It is handed the tensors that a rank holds.
"""
