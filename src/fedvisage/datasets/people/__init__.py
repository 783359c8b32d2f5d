"""Datasets of people for face recognition in their published layouts; ``datasets/catalogue.py`` lists them."""
