#!/usr/bin/env python3
"""The contest's performance test by its own name: tools/loadgen/serving.py."""

import sys

from loadgen.serving import main

if __name__ == "__main__":
    sys.exit(main())
