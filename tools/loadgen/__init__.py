"""Baton's load generator: the test programs of the write-ups as modes of one package (docs/programs.md).

Each mode speaks only a published wire shape, so that it runs against the original servers, too. Standard
library only. Every random choice comes from a seed.
"""
