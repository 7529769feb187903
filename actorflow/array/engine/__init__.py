"""The engine of arrays, which computes records: sessions, planning of units, memory, threads and devices."""
