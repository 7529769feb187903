"""Records of what ran: calls in a ring, counters, recordings and their files, analysis, spans."""
