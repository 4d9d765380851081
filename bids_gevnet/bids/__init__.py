"""BIDS datasets in, BIDS derivatives out."""
