"""The files of a run: what is written, and what is believed of it when it is read."""
