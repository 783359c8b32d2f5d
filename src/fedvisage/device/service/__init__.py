"""The HTTP service: the device pipeline and a gallery behind an API."""
