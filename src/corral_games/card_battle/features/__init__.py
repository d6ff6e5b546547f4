"""The features of the card game: the observation, and a row of numbers for each legal action."""
