"""What people see of envs: videos, images, animation in the terminal, and a window for human play."""
