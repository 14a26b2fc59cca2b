"""Makes the golden outputs of the demo under every built-in manifest, or says where they have changed.

python tools/golden.py            # compare (exit 1 when something differs)
python tools/golden.py --write    # keep what the network says now
"""

import json
import sys
from pathlib import Path

import torch

from intarsia.evidence.forms import open_form
from intarsia.evidence.golden import compare_golden, golden
from intarsia.selection.recipes import RECIPES

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "golden"


def main() -> int:
    torch.set_num_threads(1)
    failed = False
    for name in RECIPES:
        now = golden(open_form("demo", name))
        file = FOLDER / f"{name}.json"
        if "--write" in sys.argv[1:]:
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(now, indent=1) + "\n")
            print(f"{file.name}: margin {now['margin']:.3g}")
            continue
        found = compare_golden(json.loads(file.read_text()), now)
        failed = failed or bool(found)
        print("\n".join([f"{file.name}: {len(found)} differences", *map(str, found)]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
