"""Datasets for presentation attack detection, one file per dataset."""
