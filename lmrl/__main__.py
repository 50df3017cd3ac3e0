"""``python -m lmrl`` is the ``lmrl`` command.

``python -m lmrl --tied`` is the command for a process that must not outlive the one which started it. Its standard
input is a pipe that nothing is written to: the pipe closes when the other process ends, even by SIGKILL. It ignores
SIGUSR2, by which SLURM tells a whole job that its time is nearly over, since that signal is for the other process.
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
    if sys.argv[1:2] == ["--tied"]:
        del sys.argv[1]
        if hasattr(signal, "SIGUSR2"):
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        Thread(target=_end_with_the_other, daemon=True).start()
    sys.exit(main())
