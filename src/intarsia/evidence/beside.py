"""How a process begins that works beside the one that measures."""

import multiprocessing
import os
import signal
import threading

import torch


def begin_beside() -> None:
    """In a process: it ends when the one that started it does, however that ends; Ctrl-C is left to that one;
    what compilers write is not shown; one thread computes, and torch's compiler starts no processes.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
