"""Search over the settings of a recommender."""
