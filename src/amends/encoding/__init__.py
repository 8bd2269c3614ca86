"""How values are written and read back: canonical text, digests, payloads, the hash chain, redaction."""
