"""Accuracy of sampling on a model's own scores: the paper's measurements repeated on captures, and calibration.

`theory` states what order statistics predict, `ranked` orders rows, `views` finds what every phase of a view would have
proposed. `measure` gathers both over captures of any size, `draw` and `report` show it, `calibrate` turns it into a
sampling policy.
"""
