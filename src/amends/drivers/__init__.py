"""Drivers: they perform the operations that flows await, blocking or on an event loop."""
