"""What is known of the world: published scores, and how long steps of finished runs took."""
