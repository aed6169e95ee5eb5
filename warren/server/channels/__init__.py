"""What a channel of a connection does: declaring, publishing, delivering and settling, and the calls of guests."""
