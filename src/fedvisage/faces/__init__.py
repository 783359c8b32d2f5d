"""Face images: reading, detection, alignment, cropping and quality."""
