"""Reports the progress of a run: rows of metrics in files, and lines on the console."""
