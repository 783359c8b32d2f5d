"""A federation that trains again and again while machines and networks fail at random: ``make soak``."""
