#!/usr/bin/env python3
"""The contest's comparison by its own name: tools/loadgen/compare.py."""

import sys

from loadgen.compare import main

if __name__ == "__main__":
    sys.exit(main())
