"""The verifier that is packed into every bundle; it uses the standard library only."""
