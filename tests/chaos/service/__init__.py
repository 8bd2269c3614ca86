"""A saga over HTTP: a client, a server, a worker and a bank, each a process; one of the first three is killed.

The bank survives everybody. Nothing of amends is imported by the client, the worker and the bank: they speak HTTP.
"""
