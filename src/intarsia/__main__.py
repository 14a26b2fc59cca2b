"""`python -m intarsia` is the command `intarsia`."""

import sys

from intarsia.cli.main import main

sys.exit(main())
