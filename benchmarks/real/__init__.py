"""Checks and measurements with published weights and real pictures, which are not part of the package."""
