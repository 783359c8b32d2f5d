"""A web page that checks faces in the browser; no picture leaves the page."""
