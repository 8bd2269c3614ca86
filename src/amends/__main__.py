"""``python -m amends`` runs the command line."""

import sys

from amends.cli import main

sys.exit(main())
