"""Attacks on what crosses the wire: what a curious server, or anyone who listens, could find out about a site's data.

An audit is a module with one :class:`~fedvisage.audit.finding.Audit`; ``conduct.py`` has the list. It runs against a
finished simulation, where the truth is at hand to judge the attack by.
"""
