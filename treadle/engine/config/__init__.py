"""What a config of this door may say, and the parts that are built from it."""
