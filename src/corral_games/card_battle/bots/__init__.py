"""Scripted players of the card game, from random to tree search."""
