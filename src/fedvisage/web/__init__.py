"""A web page that checks faces where they are: exported models in the browser, and no picture sent anywhere."""
