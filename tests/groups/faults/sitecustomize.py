"""Makes a rank die or hang in the middle of its work: python imports this where PYTHONPATH leads to it.

FAULT is `RANK|PATTERN|COUNT|DEED`: at the COUNT-th sign of life (a word, an advance, an exchange) that rank
RANK gives while its words match PATTERN, it does DEED: kill, stop, hang or raise. The moment is written to
the file FAULT_AT. FAULT_SIGN names the one sign that counts, such as `enter`, an exchange.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path


def _install(pattern: str, count: int, deed: str) -> None:
    from intarsia.groups.status import Tally

    seen = 0

    def watched(name):
        original = getattr(Tally, name)

        def call(self, *words):
            nonlocal seen
            original(self, *words)
            seen += bool(re.match(pattern, self.read().words))
            if seen == count:
                seen += 1
                Path(os.environ["FAULT_AT"]).write_text(str(time.time()))
                _do(deed)

        setattr(Tally, name, call)

    signs = os.environ.get("FAULT_SIGN")
    for name in (signs,) if signs else ("tell", "alive", "enter"):
        watched(name)


def _do(deed: str) -> None:
    if deed == "raise":
        raise OSError("injected: the disk is gone")
    if deed == "hang":
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGSTOP if deed == "stop" else signal.SIGKILL)


_fault = os.environ.get("FAULT", "").split("|")
_words = sys.orig_argv
if len(_fault) == 4 and "--rank" in _words and _words[_words.index("--rank") + 1] == _fault[0]:
    _install(_fault[1], int(_fault[2]), _fault[3])
