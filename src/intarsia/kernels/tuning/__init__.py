"""Configurations of kernels: candidates as data, those that are used, the search, and the file that keeps it.

A configuration (tiles, warps, stages) never touches a bit of a result: what does, as how columns are cut into
ranges, is no part of one. An operation offers its candidates beside its plan, and asks before a launch
whether one of them was found to be faster on this device; where none was, its own default runs.
"""

from intarsia.kernels.tuning.active import Found, Table, found, install, installed, trying, tuned
from intarsia.kernels.tuning.candidates import Configuration, Site, Tunable, configurations, described, offer

__all__ = [
    "Configuration",
    "Found",
    "Site",
    "Table",
    "Tunable",
    "configurations",
    "described",
    "found",
    "install",
    "installed",
    "offer",
    "trying",
    "tuned",
]
