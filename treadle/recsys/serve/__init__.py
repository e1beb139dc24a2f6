"""What a trained model is for: recommendations, similar items, vectors, scores of single users."""
