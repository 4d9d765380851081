"""Pictures that more than one report draws.

`drawing` has the style and the formats; `brain` draws slices, `sphere` gradient tables and
signals, `motion` how the head moved.
"""
