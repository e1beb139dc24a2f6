"""Operations of our own beside those of torch."""
