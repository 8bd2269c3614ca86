"""How a value is written down: canonical text, digests, the hash chain, redaction."""
