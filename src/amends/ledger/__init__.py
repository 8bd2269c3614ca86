"""What a transaction is and decides, without IO."""
