"""Who performs operations: blocking and asyncio."""
