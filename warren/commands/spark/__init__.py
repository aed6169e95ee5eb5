"""``warren spark …``: the pipeline's jobs, a command each. Spark is only looked for when one of them runs."""
