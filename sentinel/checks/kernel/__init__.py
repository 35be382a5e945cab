"""What the kernel's messages mean: findings, and the page about them."""
