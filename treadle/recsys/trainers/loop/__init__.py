"""The core trainer's parts behind the trainers of this door."""
