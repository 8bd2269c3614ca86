"""One file per peer, each run by the interpreter of an environment that contains the peer, never by ours.

Each does the works that its package can do, with the package's own means; if it has no saga, compensations are guarded
calls made by hand. Harnesses say nothing about correctness: calls that a peer loses under load are counted as errors.
"""
