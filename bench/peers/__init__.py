"""One file per peer, each run by the interpreter of an environment that has the peer in it, never by ours.

Each does the works that its package can do, with the package's own means; where it has no saga, compensations are
guarded calls made by hand. Harnesses say nothing about correctness: what a peer loses under load is counted as errors.
"""
