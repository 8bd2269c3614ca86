"""What is hidden, what is encrypted, and that nothing of it is found where it should not be."""
