"""Numbers in sentences."""


def counted(count: int, noun: str) -> str:
    """`1 shard`, `2 shards`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
