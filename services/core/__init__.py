"""The vocabulary that two or more services speak."""
