"""Server and sites: their exchanges, and the checks, combination, records and recovery of these exchanges."""
