"""Worker processes for any task: how they are started, watched and stopped, and how data reaches them."""
