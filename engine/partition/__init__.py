"""One partition's truth: what was admitted, what is stable, and what a reader may see."""
