"""One deadline for one request: four clocks that span every attempt made for it.

Pure arithmetic over a monotonic clock passed in; it raises nothing and waits for nothing itself.
"""
