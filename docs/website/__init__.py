"""How the website is made of docs/: what MkDocs is told, and the pages that code writes."""
