"""Runs on disk: their folder, who trains in it, what they were made from, and how they are read."""
