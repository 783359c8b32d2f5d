"""JSON Schemas of recipes and studies, made of the classes that check them, for editors and other programs."""
