"""The command line: verbs to functions. Heavy imports happen inside the verb."""
