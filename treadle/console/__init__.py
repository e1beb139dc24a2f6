"""How a run is shown: numbers, times and lines in one style for every door."""
