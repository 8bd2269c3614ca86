"""The processes that are measured: the floor and amends. The peers, in their own environments, are in ``peers``."""
