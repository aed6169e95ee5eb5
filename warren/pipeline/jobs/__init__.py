"""The jobs: each a function from DataFrames to DataFrames, and what the command of its name does with them."""
