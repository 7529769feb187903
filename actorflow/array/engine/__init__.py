"""What computes records: sessions, plans of what is computed together, memory, threads and devices."""
