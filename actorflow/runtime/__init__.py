"""From a plan to results: engines build actors from plans, start frames, and hand out what they compute."""
