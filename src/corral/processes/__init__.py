"""Worker processes: how they are started, asked, watched and ended, whatever they do."""
