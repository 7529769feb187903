"""Records of operations on arrays, the operations themselves, and the devices where arrays live."""
