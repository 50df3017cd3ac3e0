"""``python -m lmrl.tied`` is the ``lmrl`` command for a process that must not outlive the one which started it.

Its standard input is a pipe without a writer: it ends when the other process does, even by SIGKILL. SIGUSR2, by
which SLURM tells a whole job that its time is nearly over, is for that process.
"""

import os
import signal
import sys
from threading import Thread

from lmrl.cli import main


def _end_with_the_other() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    Thread(target=_end_with_the_other, daemon=True).start()
    sys.exit(main())
