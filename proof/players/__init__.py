"""Who plays the tasks: amends, a bare loop with a framework's retries, and other packages.

A player is a module with ``prepare(catalogue)``, ``play(scenario)`` and ``finish(scenario)``. It is loaded once into a
process that forks for every act (``forks.py``), in the environment of its package.
"""
