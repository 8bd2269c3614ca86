"""What one process contributes: settings, heartbeat, checkpoints, notices, secrets. Engine, drivers and stores meet here."""
