"""The verifier that is packed into a bundle: standard library only."""
