"""The version, where anything can read it without opening the Python door."""

VERSION = "0.1.0"
