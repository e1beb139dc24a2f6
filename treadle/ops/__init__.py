"""Operations of our own."""
