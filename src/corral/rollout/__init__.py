"""Who acts: the collector, its actors, and the sources that host them."""
