"""Protections between a site's training and the new model: one chain at the site, one at the server."""
