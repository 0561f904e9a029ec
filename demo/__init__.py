"""The demonstration: several hosts on one machine, and what choosing the path is worth. Not part of the product."""
