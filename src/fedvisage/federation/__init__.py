"""What crosses between server and sites, how it is checked, combined, recorded and resumed."""
