"""Sets of rendered faces, and of attacks that are simulated on portraits."""
