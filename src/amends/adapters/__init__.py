"""Adapters: one module per framework, named after its distribution. Each imports its framework and ``amends`` alone."""
