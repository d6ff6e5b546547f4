"""The card game as numbers: the observation and a row for each legal action."""
