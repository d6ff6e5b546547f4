"""The same small runs, trained with two versions of Corral and compared: ``make snapshot BASE=<commit>``."""
