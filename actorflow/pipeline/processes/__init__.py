"""Worker processes of pipelines: how they are started, fed and ended."""
