"""The parts of the pictures of a simulation: their data, their style, their panels, and the ribbon above the panels.

:mod:`warren.simulation.plots`, :mod:`warren.simulation.compare` and :mod:`warren.simulation.report` put them together.
"""
