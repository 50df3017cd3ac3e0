"""``python -m lmrl`` is the ``lmrl`` command."""

import sys

from lmrl.cli import main

sys.exit(main())
