"""How fast amends is, as ratios to a floor measured in the same run. ``make bench``; not part of the wheel."""
