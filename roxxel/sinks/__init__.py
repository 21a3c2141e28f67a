"""Where metrics and messages go."""
