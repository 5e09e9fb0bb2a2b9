"""The interim process pool, until the hardened one stands."""
