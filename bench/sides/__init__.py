"""The processes that are measured: the floor and amends. The peers, in environments of their own, are in ``peers``."""
