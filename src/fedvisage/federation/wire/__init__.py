"""Messages between server and sites: their declaration, check, encoding and transport."""
