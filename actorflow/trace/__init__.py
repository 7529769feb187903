"""Records of runs: calls in a ring, counters, recordings and their files, analysis, spans."""
