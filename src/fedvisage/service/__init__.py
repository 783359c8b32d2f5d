"""What exported models and a gallery say, for other programs: over HTTP."""
