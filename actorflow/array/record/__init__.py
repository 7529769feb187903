"""What is recorded: operations on arrays, where they are computed, and the records that they leave."""
