"""What is done with programs and runs besides training them."""
