"""`python -m engine` is the command `llama-engine`."""

import sys

from engine.cli import main

sys.exit(main())
