"""The functions of the array API standard, by subject."""
