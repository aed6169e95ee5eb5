"""The variable queue: Q1 to Q4, delta, paging, acks and confirms."""
