"""Text to token ids, exactly."""
