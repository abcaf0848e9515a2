#!/usr/bin/env python3
"""The lab's test: tools/loadgen/lab.py."""

import sys

from loadgen.lab import main

if __name__ == "__main__":
    sys.exit(main())
