"""RISH features and the gains that harmonise them across sites."""
