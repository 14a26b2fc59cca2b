"""Ranks that run one network together: exchanges, agreement, and who is to blame when one is lost."""
