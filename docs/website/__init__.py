"""The website of docs/: settings of MkDocs, and generated pages."""
