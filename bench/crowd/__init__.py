"""A thousand requests at once on two cores and 2 GB: who is answered, how evenly, and what is left.

``questions`` makes requests of equal length, ``target`` answers them in a process of its own,
``asking`` sends them, ``wave`` has them all in flight and measures, ``client`` is the limited
process that does so, ``judged`` says what held.
"""
