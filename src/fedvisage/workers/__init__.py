"""Processes that work beside this one, and work that is spread over them."""
