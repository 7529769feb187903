"""From a plan to results: builds programs from plans, starts frames, and hands out what they fetch."""
