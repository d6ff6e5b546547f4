"""Writers and the console: what a run tells people and files. They read numbers and know nothing of training."""
