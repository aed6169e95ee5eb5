"""topics: the verbs of topics, their readers and their prepared messages, and the hosts that perform them."""
