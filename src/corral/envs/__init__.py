"""From the name of an env to envs: what is known of them, how they are made, and what they may offer."""
