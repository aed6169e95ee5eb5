"""The shovel: takes messages from one place to another, and forgets none on the way.

A *place* is a data directory (warren's or RabbitMQ's), an archive of one, or a live broker. What is on the way is a
*letter* (:mod:`~warren.shovel.letter`): a message as it stood in its queue, its properties as the very bytes. A
*source* (:mod:`~warren.shovel.places`) hands letters out queue by queue, in order; a *destination* takes them and says,
later and in batches, which of them are safe there or refused. The *pump* (:mod:`~warren.shovel.pump`) stands between
them and keeps the one rule that everything else follows from:

    a letter is settled at the source only after the destination has confirmed it.

A source that moves acks it then; one that copies from a read-only place writes down that it is done
(:mod:`~warren.shovel.progress`). So whatever is killed, whenever, no message is lost; one that was on the way may be
there twice.
"""
