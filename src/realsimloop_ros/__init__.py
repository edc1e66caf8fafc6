"""Digital twin of a soft body, estimated online from what cameras, markers and arms measure.

Parts, in the order in which they may import each other: body, mechanics, reduction, dynamics, observation,
estimation, control, cell, evaluation, nodes.
"""

__version__ = "0.1.0"
