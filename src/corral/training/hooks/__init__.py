"""What happens around iterations, one file each."""
