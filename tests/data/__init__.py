"""Where the test data lies, and how to read it."""

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def load_json(name: str) -> Any:
    """A data file, plain or gzipped JSON."""
    data = (FOLDER / name).read_bytes()
    return json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
