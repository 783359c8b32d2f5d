"""The two tasks: presentation attack detection (``pad``) and face recognition."""
