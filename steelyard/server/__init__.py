"""What the server does after the weighted sum."""
