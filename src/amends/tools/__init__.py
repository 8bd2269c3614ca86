"""Declaring tools."""
