"""Measure how fast amends is, as ratios to a floor measured in the same run: ``make bench``. Not part of the wheel."""
