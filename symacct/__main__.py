"""`python -m symacct`."""

import sys

from symacct.cli import main

sys.exit(main())
