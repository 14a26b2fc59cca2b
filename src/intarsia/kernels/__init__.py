"""The operations of the network, one folder each: the plain torch reference beside its GPU kernel.

The reference is the specification. Both take the same arguments: many rows of several streams at once
(`rows.Rows`), caches addressed through page tables, and nothing that makes the host look at a value on the
device. Only the CPU reference looks, and only to skip work whose result would be masked.
"""
