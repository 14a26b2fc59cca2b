"""A rank ends when the process that started it is gone, however that went."""

import contextlib
import os
import threading

from intarsia.groups.status import LIFELINE_FD


def end_with_launcher() -> None:
    """End this process when the one that started it is gone: its end of a pipe closes with it."""
    descriptor = os.environ.pop(LIFELINE_FD, None)
    if descriptor is None:
        return

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(int(descriptor), 1)
        os._exit(1)

    threading.Thread(target=watch, name="intarsia-lifeline", daemon=True).start()
