"""The command line. The modules of a verb are imported only when that verb is used."""
