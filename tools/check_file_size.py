"""Refuse large files: ``python tools/check_file_size.py FILE...``, as a pre-commit hook and in ``make lint``.

Git keeps every version of every file forever, so that one large file makes each later clone slower.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

LIMIT = 500_000
"""Bytes of the largest file that is accepted."""
EXEMPT = "zoo/"
"""Weights of trained policies are large by nature; tests/models/test_zoo.py limits their sum."""


def main(names: Sequence[str]) -> int:
    """Print one line per file that is too large; return 1 if there is any."""
    failed = False
    for name in names:
        path = Path(name)
        # Until a deletion is committed, git lists the deleted file too.
        if name.startswith(EXEMPT) or not path.is_file():
            continue
        size = path.stat().st_size
        if size > LIMIT:
            print(f"{name}: {size / 1000:,.0f} kB; files outside {EXEMPT} may have {LIMIT / 1000:,.0f} kB")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
