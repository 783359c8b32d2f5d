"""The version of the package, in a module that is cheap to import."""

VERSION = "0.1.0"
