"""What a run tells: rows of metrics in files, lines on the console."""
