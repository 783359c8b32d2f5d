"""What crosses between server and sites: messages, declared fields, their check, and how they travel."""
