"""Files that ship with the project: a stopped RabbitMQ's directory (:mod:`warren.commands.demo`), and known situations
for the simulation (:mod:`warren.simulation.toml_file`)."""
