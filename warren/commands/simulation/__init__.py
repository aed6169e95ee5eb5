"""``warren simulate …``: what the simulation is asked, and how it answers."""
