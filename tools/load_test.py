#!/usr/bin/env python3
"""The tutorial's load test by its own name: tools/loadgen/tutorial.py."""

import sys

from loadgen.tutorial import main

if __name__ == "__main__":
    sys.exit(main())
