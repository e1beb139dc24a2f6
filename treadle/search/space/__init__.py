"""What a search may try: domains, dimensions, and configs with domains in them."""
